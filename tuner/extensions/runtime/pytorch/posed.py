"""A KernelBench problem's model whose `forward` is a tuned kernel, where it is as it was tuned.

A copy of this file is part of every export to KernelBench.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

import torch

from .runtime import PLAIN, Operator, Scalar


class Posed(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Stands before the problem's `Model` among the bases of `ModelNew`, which fills this in.

    `constructor` is what the problem makes its model with. Of the kernel's arrays in their order,
    `arrays` has an input's place, a weight's name, and None for what the kernel writes. `tuned` has
    by the inputs, tensors by their shapes, the shapes of the outputs and the axes that no array
    has. `has_mode` says that `train()` and `eval()` may change what the model computes. `returns`
    is how `forward` returns its outputs, None where there is one.

    There is no derivative: where an input wants one, PyTorch takes the call. Weights that want one
    are no reason to, for harnesses time models as they are made.
    """

    operator: Operator
    quick: Callable[..., bool] | None
    constructor: tuple[Sequence[Any], Mapping[str, Any]]
    arrays: tuple[int | str | None, ...]
    tuned: Mapping[tuple[Any, ...], tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]]
    has_mode: bool
    returns: Callable[[list[Any]], Any] | None
    _defaults: list[float]

    def __init_subclass__(cls) -> None:
        order = cls.operator.table.order
        given = [one.default for one in order if isinstance(one, Scalar)]
        cls._defaults = [one for one in given if one is not None]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        takes, (wanted, wanted_named) = signature(super().__init__), self.constructor
        given, posed = takes.bind(*arguments, **named), takes.bind(*wanted, **wanted_named)
        given.apply_defaults()
        posed.apply_defaults()
        # As text: comparing tensors would give tensors.
        self._is_as_posed = repr(given.arguments) == repr(posed.arguments)
        self._was_training = self.training

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Launch the tuned kernel on the current stream, or do what the problem's model does."""
        if torch.compiler.is_compiling():  # which fuses what the model does with what is around it
            return super().forward(*inputs, **named)
        outputs: list[Any] = []
        why = self._why_not(inputs, named) or self._launch(inputs, outputs)
        if why:
            warnings.warn(f"{self.operator.table.name}: {why}: PyTorch computes it", stacklevel=2)
            return super().forward(*inputs, **named)
        return self.returns(outputs) if self.returns else outputs[0]

    def _why_not(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> str:
        """Say what is not as it was tuned, "" where all is."""
        if not self._is_as_posed:
            return "made with other arguments than the problem's"
        if named:
            return "inputs are given by name"
        if self.has_mode and self.training is not self._was_training:
            return f"training is {self.training}, not {self._was_training}"
        if torch._C._len_torch_dispatch_stack():
            return "the call is traced"
        tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
        if not all(type(tensor) in PLAIN for tensor in tensors):
            return "an input is no plain tensor"
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return "an input wants a derivative"
        if _shapes(inputs) not in self.tuned:
            asked = (tuple(one.shape) if hasattr(one, "shape") else one for one in inputs)
            return f"not tuned for {', '.join(map(str, asked))}"
        return ""

    def _launch(self, inputs: tuple[Any, ...], outputs: list[Any]) -> str:
        """Launch the kernel on new outputs, or say why it can't be."""
        shapes, given = self.tuned[_shapes(inputs)]
        read = {
            at: inputs[one] if isinstance(one, int) else self._weight(one)
            for at, one in enumerate(self.arrays)
            if one is not None
        }
        device, arrays = next(iter(read.values())).device, []
        for at, dtype in enumerate(self.operator.dtypes):
            one = read.get(at)
            if one is None:
                one = torch.empty(shapes[len(outputs)], dtype=dtype, device=device)
                outputs.append(one)
            arrays.append(one if one.shape else one.view(1))
        graded = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)  # a context of `no_grad` takes as long as the launch
        try:
            if self.quick is not None and self.quick(*arrays, *self._defaults):
                return ""
            return self.operator.enqueue(tuple(arrays), given, {})
        finally:
            torch._C._set_grad_enabled(graded)

    def _weight(self, name: str) -> Any:
        """Find a weight as it is now; modules' own look-up takes ten times as long."""
        *homes, last = name.split(".")
        module: Any = self
        for home in homes:
            module = module._modules[home]
        found = module._parameters.get(last)
        return getattr(module, last) if found is None else found


def _shapes(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([one.shape if isinstance(one, torch.Tensor) else one for one in inputs])
