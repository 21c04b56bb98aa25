"""How PyTorch computes: in float64, with or without TF32, and with operands rounded to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

# What a rounding to TF32 adds to a float32's bits, to nearest, and which bits it leaves.
_HALF, _KEPT = 1 << 12, -1 << 13
# Where a product has what it multiplies, and by which names.
_FIRST_TWO, _AFTER_THE_SUM = (0, 1), (1, 2)
_OPERANDS = frozenset({"weight", "other", "mat1", "mat2", "batch1", "batch2"})


@contextmanager
def computing(torch: Any, *, widened: bool = False, rounded: bool = False) -> Iterator[None]:
    """Compute without gradients and with float64 as PyTorch's default.

    `widened` makes float64 of whatever the code casts to a smaller float, but for 8 bits: code that
    was written for a kernel's dtype rounds where the reference must not. `rounded` rounds what
    products and convolutions multiply to TF32.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad(), _convolving(torch)(rounded):
            if widened:
                with _widening(torch)():
                    yield
            else:
                yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def tf32(torch: Any, *, allowed: bool) -> Iterator[None]:
    """Allow TF32 in products and convolutions, or not: cuDNN takes it unless it is told not to."""
    libraries = torch.backends.cudnn, torch.backends.cuda.matmul
    before = [library.allow_tf32 for library in libraries]
    for library in libraries:
        library.allow_tf32 = allowed
    try:
        yield
    finally:
        for library, was_allowed in zip(libraries, before, strict=True):
            library.allow_tf32 = was_allowed


def round_to_tf32(torch: Any, values: Any) -> Any:
    """Round floats to TF32's ten bits, to nearest and ties away from zero, in their own dtype."""
    if not (isinstance(values, torch.Tensor) and values.is_floating_point()):
        return values
    bits = values.float().contiguous().view(torch.int32)
    return ((bits + _HALF) & _KEPT).view(torch.float32).to(values.dtype)


def convolutions(torch: Any) -> set[Callable[..., Any]]:
    names = [f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)]
    return {getattr(torch.nn.functional, name) for name in names}


def _products(torch: Any) -> dict[Callable[..., Any], tuple[int, ...]]:
    """Say of each product at which places it has what it multiplies."""
    tensor = torch.Tensor
    found: dict[Callable[..., Any], tuple[int, ...]] = dict.fromkeys(
        convolutions(torch), _FIRST_TWO
    )
    found |= dict.fromkeys((torch.nn.functional.linear, tensor.__matmul__), _FIRST_TWO)
    found[tensor.__rmatmul__] = _FIRST_TWO
    for home in (torch, tensor):
        found |= {getattr(home, n): _FIRST_TWO for n in ("matmul", "mm", "bmm", "mv")}
        found |= {getattr(home, n): _AFTER_THE_SUM for n in ("addmm", "baddbmm")}
    return found


@cache
def _convolving(torch: Any) -> Any:
    """Make a mode that keeps cuDNN from convolutions, whose float64 takes no tensor cores.

    PyTorch's own make products of them: on an H200 51 ms for 524, a transposed one over
    8 x 48 x 96 x 96 x 96, 14 for 45, a dilated one; at worst 12 for 9.
    """
    own, products = convolutions(torch), _products(torch)

    class Convolving(torch.overrides.TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        def __init__(self, rounded: bool) -> None:
            super().__init__()
            self._rounded = rounded

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            named = kwargs or {}
            if self._rounded and (places := products.get(function)):
                # `input` is a sum's first part, or a product's.
                names = _OPERANDS | {"input"} if places == _FIRST_TWO else _OPERANDS
                args = [round_to_tf32(torch, v) if n in places else v for n, v in enumerate(args)]
                named = {n: round_to_tf32(torch, v) if n in names else v for n, v in named.items()}
            if function not in own:
                return function(*args, **named)
            with torch.backends.cudnn.flags(enabled=False):
                return function(*args, **named)

    return Convolving


@cache
def _widening(torch: Any) -> Any:
    small = {torch.float16, torch.bfloat16, torch.float32}
    casts = {torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16}

    def wide(value: Any) -> Any:
        return torch.float64 if isinstance(value, torch.dtype) and value in small else value

    class Widening(torch.overrides.TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function in casts:
                return args[0].double()
            named = {key: wide(value) for key, value in (kwargs or {}).items()}
            return function(*map(wide, args), **named)

    return Widening
