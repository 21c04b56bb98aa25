"""Can these inputs tell right from wrong? What of a reference never changes, on a small problem."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tuner.device.inputs import NORMAL, Prepared, input_kinds_for
from tuner.device.layout import lay_out
from tuner.device.sizes import smaller_workloads
from tuner.device.verify.verifier import HostMemory, Verifier
from tuner.model.errors import KernelError
from tuner.model.kernel import KernelSpec, Workload

# NumPy takes a blink for a reference of so many bytes.
_USUAL_BYTES, _MOST_BYTES = 1 << 18, 8 << 20
_SEEDS = (1, 2)
MEANT = "give inputs a `fill` with which it shows, or say `idle: REASON` where that is meant"


class TellingVerifier(Verifier):
    """A verifier that refuses at first what no input could show."""

    def require_telling(self) -> None:
        """Raise `KernelError` where an input changes nothing, or nothing changes an output."""
        require_telling(self._spec, self._answers.operators)


def require_telling(spec: KernelSpec, operators: Mapping[str, str]) -> None:
    """Raise `KernelError` where an input changes nothing of the reference, or nothing an output.

    This is seen on a small problem, and nothing is said where none can be had, nor of inputs that
    another choice of the operator may read.
    """
    arrays = [one for one in spec.arguments if not one.is_scalar and not one.idle]
    workload = next(_small_workloads(spec), None)
    if workload is None:
        return
    try:
        teller = _Teller(spec, operators, workload)
        outputs = [array for array in arrays if array.is_written]
        same = [output for output in outputs if teller.is_same(output.name)]
        # What of an inout is written before it is read may be all of it: a draft says it unasked.
        inputs = [array for array in arrays if array.role == "input"]
        unread = [array for array in inputs if not (spec.operators or teller.shows(array.name))]
    except (KernelError, MemoryError):
        return  # whoever needs the reference says what is wrong with it
    for argument in (*unread, *same):
        told = "no output of the reference depends on the input"
        if argument in same:
            told = f"the reference gives the same for all {len(teller.sets)} sets of inputs for"
        message = f"{told} `{argument.name}`, with {workload}"
        raise KernelError(message, path=spec.path, line=argument.line, remedy=MEANT)


def _small_workloads(spec: KernelSpec) -> Iterator[Workload]:
    # of a single row or number much is the same that else is not
    workloads = [w for w in (*spec.workloads, *spec.edge_cases) if 1 not in w.values.values()]
    sizes = {workload: spec.footprint_bytes(workload) for workload in workloads}
    usual = [workload for workload, size in sizes.items() if size <= _USUAL_BYTES]
    if usual:
        yield max(usual, key=sizes.__getitem__)
    yield from sorted((w for w, n in sizes.items() if n <= _MOST_BYTES), key=sizes.__getitem__)
    yield from smaller_workloads(spec)


class _Teller(Verifier):
    """References of every kind of input on one workload, and of single inputs exchanged."""

    def __init__(self, spec: KernelSpec, operators: Mapping[str, str], workload: Workload) -> None:
        super().__init__(HostMemory(), spec, operators)
        self.open_arena(workload, lay_out(spec, workload.values))
        drawn = [(kind, _SEEDS[0]) for kind in input_kinds_for(spec)]
        self.sets = [self._prepare_set(workload, *one) for one in (*drawn, (NORMAL, _SEEDS[1]))]

    def _prepare_set(self, workload: Workload, kind: str, seed: int) -> Prepared:
        self.prepare(workload, kind, seed)
        self.compute_reference()
        return self._current

    def is_same(self, output: str) -> bool:
        """Tell whether an output is the same on all kinds of input, which differ."""
        first, *others = self.sets
        differ = any(not _equal(first.inputs, other.inputs) for other in others)
        return differ and all(_same(first, other, output) for other in others)

    def shows(self, name: str) -> bool:
        """Tell whether other content in this input alone gives other outputs; or is there none?"""
        first, tried = self.sets[0], False
        for other in self.sets[1:]:
            if np.array_equal(first.inputs[name].view("u1"), other.inputs[name].view("u1")):
                continue
            tried = True
            content = {**first.inputs, name: other.inputs[name]}
            mixed = Prepared(first.workload, first.kind, first.seed, content)
            try:
                self._refer(mixed)
            except KernelError:  # it counts, for the reference cannot do with any
                return True
            if not all(_same(first, mixed, output) for output in self._answers.names()):
                return True
        return not tried


def _same(one: Prepared, other: Prepared, output: str) -> bool:
    before, after = ((prepared.reference or {})[output] for prepared in (one, other))
    return bool(np.array_equal(before, after, equal_nan=True))


def _equal(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    return all(np.array_equal(one[name].view("u1"), other[name].view("u1")) for name in one)
