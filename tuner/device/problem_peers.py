"""Peers that a problem has though nobody named them: itself in PyTorch, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from tuner.device.encoding import torch_name
from tuner.device.problems import BenchProblem, is_problem
from tuner.device.reference import PeerFunction, load_peers
from tuner.device.torch_modes import tf32
from tuner.device.torch_reference import expression
from tuner.model.errors import KernelError
from tuner.model.expressions import Value
from tuner.model.kernel import KernelSpec

# Ours are captured into CUDA graphs already.
_MODES = {
    "eager": "",
    "torch.compile": "default",
    "torch.compile-max": "max-autotune-no-cudagraphs",
}
Tensors = Mapping[str, Any]
# What computes all outputs from the arrays of a call.
Compute = Callable[[Tensors], Any]


def is_posed(spec: KernelSpec) -> bool:
    """Tell whether the reference is a KernelBench problem or an expression over PyTorch."""
    return spec.torch is not None or is_problem(spec.reference)


def own_peers(spec: KernelSpec) -> tuple[str, ...]:
    """Name the peers that a kernel has though its reference file names none."""
    return tuple(_MODES) if is_posed(spec) else ()


def peers_of(spec: KernelSpec) -> dict[str, PeerFunction]:
    """Return a kernel's peers by name: its own, and those that its reference file names.

    `eager` is what users of PyTorch run, with TF32 allowed; so are the two compiled ones.
    """
    posed = partial(_expression if spec.torch is not None else _problem, spec)
    own = {name: _Peer(spec, posed, _MODES[name]).call for name in own_peers(spec)}
    return {**own, **load_peers(spec.reference)}


class _Peer:
    """One way to run what is posed; what was compiled for the axes asked last is kept."""

    def __init__(self, spec: KernelSpec, posed: Callable[..., Compute], mode: str) -> None:
        self._posed, self._mode = posed, mode
        arguments = [argument for argument in spec.arguments if not argument.is_scalar]
        self._outputs = [argument for argument in arguments if argument.is_written]
        self._made: tuple[object, Compute] | None = None

    def call(self, tensors: Tensors, axes: Mapping[str, int], **operator: str) -> Tensors:
        """Compute the outputs as peers do."""
        torch = import_module("torch")
        asked = dict(axes), operator
        if self._made is None or self._made[0] != asked:
            self._made = asked, self._make(torch, self._posed(torch, tensors, axes, operator))
        with tf32(torch, allowed=True):
            results = self._made[1](tensors)
        return {output.name: each for output, each in zip(self._outputs, results, strict=True)}

    def _make(self, torch: Any, compute: Compute) -> Compute:
        def results(tensors: Tensors) -> list[Any]:
            computed = compute(tensors)
            several = computed if isinstance(computed, tuple | list) else (computed,)
            return [
                # One number may have a dimension.
                result.to(getattr(torch, torch_name(output.dtype))).reshape(
                    tensors[output.name].shape
                )
                for output, result in zip(self._outputs, several, strict=True)
            ]

        if not self._mode:
            return results
        compiled: Compute = torch.compile(results, dynamic=False, mode=self._mode)
        return compiled


def _problem(
    spec: KernelSpec,
    torch: Any,
    tensors: Tensors,
    axes: Mapping[str, int],
    operator: Mapping[str, str],
) -> Compute:
    """Pose a problem for some axes; its weights are arrays of the kernel's, as its inputs are."""
    posed, device = BenchProblem(spec.reference).at(axes), str(next(iter(tensors.values())).device)
    try:
        values, _ = posed.inputs(device="meta")
        unknown = any(hasattr(v, "shape") and n not in tensors for n, v in values.items())
    except KernelError:
        unknown = True
    if unknown:
        values, _ = posed.inputs(device=device)
    model = posed.model(wide=False, device=device)
    weights = {n: (own, tensor.shape) for n, (own, tensor) in posed.weights(model).items()}
    weights = {name: weight for name, weight in weights.items() if name in tensors}

    # torch.compile looks the module up by its name, which is there as long as `posed` is.
    def compute(tensors: Tensors, _posed: object = posed) -> Any:
        state = {own: tensors[name].reshape(shape) for name, (own, shape) in weights.items()}
        inputs = [
            tensors[name].reshape(value.shape) if name in tensors else value
            for name, value in values.items()
        ]
        return torch.func.functional_call(model, state, tuple(inputs))

    return compute


def _expression(
    spec: KernelSpec,
    torch: Any,
    tensors: Tensors,
    axes: Mapping[str, int],
    operator: Mapping[str, str],
) -> Compute:
    run, read = expression(spec, torch), [a.name for a in spec.arguments if a.role != "output"]
    names: dict[str, Value] = {**axes, **operator}
    names |= {a.name: a.value.evaluate(names) for a in spec.arguments if a.value is not None}
    return lambda tensors: run(**names, **{n: tensors[n] for n in read if n in tensors})
