"""What is always true of inputs that a problem gives itself: buffers, and what is no plain draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import prod
from operator import itemgetter
from typing import Any

from tuner.device.problems import BenchProblem, Sizes
from tuner.model.errors import KernelError

# Of all inputs of a workload together, a quarter of a gigabyte: so many are drawn in a second.
_MOST_NUMBERS = 2**26
# Fewer numbers are sorted, or triangular, by chance.
_LEAST_NUMBERS = 64
_MOST_VALUES = 3
_SAMPLE = 4096
# A smaller part of zeros spares little.
_LEAST_ZEROS = 0.1


def find_notes(problem: BenchProblem, cases: Sequence[Sizes]) -> Mapping[str, str]:
    """Say by name what holds in two draws, on the largest of some sizes that is small enough.

    Nothing of inputs that are plain draws, for a verifier draws others in their place, nor where
    all of the sizes are too large.
    """
    with suppress(KernelError, RuntimeError, MemoryError):
        counted = [(_count_numbers(problem, case), case) for case in cases]
        fitting = [pair for pair in counted if pair[0] <= _MOST_NUMBERS]
        if fitting:
            posed = problem.at(max(fitting, key=itemgetter(0))[1])
            first, second = (posed.drawn(seed) for seed in (1, 2))
            found = {name: [*_facts(first[name])] for name in first}
            both = {n: [one for one in found[n] if one in {*_facts(second[n])}] for n in found}
            return {name: ", ".join(facts) for name, facts in both.items() if facts}
    return {}


def _count_numbers(problem: BenchProblem, case: Sizes) -> int:
    posed = problem.at(case)
    inputs, _ = posed.inputs(device="meta")
    shapes = [tuple(value.shape) for value in inputs.values() if hasattr(value, "shape")]
    shapes += [tuple(buffer.shape) for buffer in posed.model(wide=False).buffers()]
    return sum(map(prod, shapes))


def _facts(tensor: Any) -> Iterator[str]:
    count = tensor.numel()
    if count < 2:
        return
    flat = tensor.detach().reshape(-1)
    if bool((flat == flat[0]).all()):
        yield f"all {flat[0].item():g}"
        return
    if count < _LEAST_NUMBERS:
        return
    values = sorted({*flat[:: max(count // _SAMPLE, 1)].tolist()})
    matched = sum(int((flat == value).sum()) for value in values[: _MOST_VALUES + 1])
    if len(values) <= _MOST_VALUES and matched == count:
        yield f"only {', '.join(f'{value:g}' for value in values)}"
    zeros = int((flat == 0).sum()) / count
    if zeros >= _LEAST_ZEROS:
        yield f"{zeros:.0%} zeros"
    if tensor.dim() > 1 and min(tensor.shape[-2:]) > 1:
        lower, upper = (not bool(half.any()) for half in (tensor.triu(1), tensor.tril(-1)))
        if lower or upper:
            both = lower and upper
            yield "diagonal" if both else "lower triangular" if lower else "upper triangular"
            return
    yield from _describe_axes(tensor)


def _describe_axes(tensor: Any) -> Iterator[str]:
    last, first = tensor.shape[-1], tensor.shape[0]
    if last > 1:
        before, after = tensor[..., :-1], tensor[..., 1:]
        if bool((before == after).all()):
            yield "one value a row"
        elif last > 2 and bool((before <= after).all()):
            yield "ascending in each row"
        elif last > 2 and bool((before >= after).all()):
            yield "descending in each row"
    if tensor.dim() > 1 and first > 1 and bool((tensor == tensor[:1]).all()):
        yield "the same for every first index"
