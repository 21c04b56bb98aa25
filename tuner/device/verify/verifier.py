"""The process that owns inputs, reference and verdict; candidate code never runs in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from tuner.device.base import BITS_DIFFER
from tuner.device.encoding import Array, decode, is_all, is_any, storage_dtype
from tuner.device.inputs import (
    NONFINITE,
    NORMAL,
    InputCache,
    Prepared,
    same_seed,
)
from tuner.device.layout import UNCHANGED, Arena, Layout, Patch, Slot, fill_byte
from tuner.device.problem_peers import is_posed
from tuner.device.reference import (
    CanonicalFunction,
    blamed_on,
    misfit,
    require_dict,
    returning,
)
from tuner.device.verify.accuracy import Leeway
from tuner.device.verify.answers import Answers, Moved, is_either, widen
from tuner.device.verify.bits import (
    count_probes,
    digest,
    digest_rows,
    draw_probes,
    place_probes,
    place_rows,
    rows_of,
)
from tuner.device.verify.on_gpu import Output, look, streaming_gbps
from tuner.device.verify.outputs import (
    Verdict,
    can_look_judge,
    compare,
    compare_between,
    zeros_pass,
)
from tuner.device.verify.twins import Twins
from tuner.model.errors import Untellable
from tuner.model.kernel import FLOAT_DTYPES, KernelSpec, Tolerance, Workload
from tuner.model.trial import Accuracy, Correctness

# How far off a peer may be: production rounds in places where the reference does not, and its fp8
# products add up K of 7168 in the tensor cores' 14 bits, which on an H200 came to 5.4.
PEER_TOLERANCES = 8.0
# And one of a problem: PyTorch is what it is, whatever the problem asks for. TF32 has 11 bits, and
# what it is off by grows in sums that cancel; beyond this it is another function.
ROUGH = 0.05
# Of what may be kept, for the inputs that all configs get: else they are drawn again each time.
SAME_SHARE = 0.25
Whose = Literal["config", "baseline", "peer"]


class HostMemory:
    """Bytes that the verifier fills and reads and that a kernel is launched on: here the process's.

    `xp` is the array library of `data`, which exists between `open` and `close`; `cache_bytes`
    is what the verifier may keep beside it. This is enough to check a reference without a GPU.
    """

    # An arena beyond which there is no room for two references.
    large_bytes: float = math.inf

    def __init__(self, xp: Any = np, cache_bytes: int = 0) -> None:
        self.xp, self.cache_bytes = xp, cache_bytes
        self.data: Array = None

    def open(self, key: str, layout: Layout) -> Arena:
        """Allocate for one workload, releasing what was open, and say how to reach it."""
        self.data = np.zeros(layout.total_bytes, np.uint8)
        return Arena(key, layout, None, None)

    def close(self) -> None:
        self.data = None

    def push(self) -> None:
        """Make what was written visible to the launching process."""

    def pull(self) -> None:
        """Make what was launched visible in `data`."""

    def synchronize(self) -> None:
        """Wait for the array library's work."""

    def trim(self, spare_bytes: int = 0) -> None:
        """Give back what the array libraries keep of freed memory, if it is more than so much."""


class Verifier:
    """Prepare inputs in a shared arena, and verify what a kernel made of them.

    `prepare` fills the inputs and poisons the rest; the worker launches; `check` compares. The
    worker reaches only the arena: reference values and the copies of the inputs stay here.
    """

    def __init__(self, memory: HostMemory, spec: KernelSpec, operators: Mapping[str, str]) -> None:
        self._memory, self._xp = memory, memory.xp
        self._spec = spec
        self._leeway = Leeway(spec)
        self._answers = Answers(memory.xp, spec, operators, self._leeway)
        self._arena: Arena | None = None
        self._prepared: Prepared | None = None
        # What timed calls meet variants of.
        self._timed: Prepared | None = None
        # Of how many elements a change is, and whether also of what the reference draws.
        self._touched: dict[Workload, int] = {}
        self._changes_given = not self._answers.reference.fixed
        self._cache = InputCache(memory.cache_bytes, memory.trim)
        # What every config gets, and of which kinds and seed that is.
        self._same: tuple[tuple[str, str, int], Prepared] | None = None
        self._places: Mapping[int, int] = {}
        self._guards: Array = None
        self._poison = self._guard = 0
        self._workload: Workload | None = None
        # Whether memory has ended on it, so that nothing is kept but what is in use.
        self._frugal = False

    def open_arena(self, workload: Workload, layout: Layout) -> Arena:
        """Allocate the shared memory for one workload; the previous workload's is released."""
        self.close_arena()
        again = self._frugal and workload == self._workload
        self._frugal = again or layout.total_bytes > self._memory.large_bytes
        self._workload = workload
        self._arena = self._memory.open(workload.key, layout)
        self._guards = self._xp.asarray(layout.guards)
        return self._arena

    def fit(self, layout: Layout) -> Arena:
        """Lay the same memory out for scratch of another size; what comes next prepares it."""
        assert self._arena is not None
        self._arena = replace(self._arena, layout=layout)
        self._guards = self._xp.asarray(layout.guards)
        return self._arena

    def close_arena(self) -> None:
        self._prepared = self._arena = self._timed = None
        self._cache.clear()
        self._same = None
        self._memory.close()

    def let_go(self) -> None:
        """Leave to others all memory that is not in use, as long as the workload stays open.

        What is kept only saves time.
        """
        self._frugal, self._same = True, None
        self._cache.clear()
        self._memory.trim()

    def _trim(self) -> None:
        """Give back what was freed before others allocate: drawing takes several times as much.

        As much as is kept for use again may lie free besides: what has been freed comes back at
        once, but of a layer's 1.4 GB of weights it would be most of a GPU.
        """
        self._memory.trim(0 if self._frugal else self._memory.cache_bytes)

    def prepare(self, workload: Workload, kind: str, seed: int, cached: bool = False) -> bool:
        """Put inputs into the arena, poison the rest; tell whether their reference is known.

        `cached` allows inputs that other configs were checked with. Those that are in the arena
        already are not drawn again.
        """
        prepared = self._prepared
        wanted = workload, kind, seed
        if prepared and (prepared.workload, prepared.kind, prepared.seed) != wanted:
            prepared = None
        if prepared is None and cached:
            prepared = self._cache.take(kind, seed)
        if prepared is None:
            if self._frugal:
                self._prepared = self._timed = None
            prepared = self._cache.making_room(partial(self._draw, workload, kind, seed))
            if cached and not self._frugal:
                self._cache.put(prepared)
        self._use(prepared)
        self._trim()
        return prepared.reference is not None

    def prepare_same(
        self,
        workload: Workload,
        kind: str = NORMAL,
        seed: int | None = None,
        turn: int = 0,
        beside: str = "",
    ) -> Mapping[int, int]:
        """Put the inputs into the arena that every config of a workload gets, and poison the rest.

        Of invariant rows some are the same at every size, in places of their own in each turn: tell
        which. The others are of the kind `beside`, where that is another. What was made of them is
        not verified: `digest` tells its bits.
        """
        spec, rows = self._spec, self._spec.invariant
        seed = same_seed(spec.problem_of(workload)) if seed is None else seed
        wanted = kind, beside or kind, seed
        if self._same and self._same[0] == wanted:
            prepared = self._same[1]
        elif rows:
            others = self._draw(workload, beside or kind, seed ^ same_seed(workload))
            prepared = draw_probes(self._xp, self._answers, spec, others, kind, seed)
        else:
            prepared = self._draw(workload, kind, seed)
        fits = prepared.size_bytes <= self._memory.cache_bytes * SAME_SHARE
        self._same = (wanted, prepared) if fits and not self._frugal else None
        self._places = {}
        if rows:
            size, probes = workload.values[rows.axis], count_probes(rows, spec)
            self._places = place_probes(size, turn, probes, seed)
            prepared = place_rows(self._xp, prepared, spec, self._places)
        self._use(prepared)
        return self._places

    def poison(self) -> None:
        """Spoil every output and renew the guards, keeping the inputs: a second run can follow."""
        self._poison = fill_byte(nan=self._current.kind != NONFINITE, other_than=self._poison)
        for slot in self._layout.spoiled:
            self._bytes(slot)[...] = self._poison
        for slot in self._layout.with_role("inout"):
            self._view(slot)[...] = self._current.inputs[slot.name]
        for slot in self._layout.zeroed:
            self._bytes(slot)[...] = 0
        self._guard = fill_byte(other_than=self._guard)
        for start, stop in self._layout.guards:
            self._memory.data[start:stop] = self._guard
        self._memory.push()

    def touch(self) -> None:
        """Change as few of the inputs as show in the outputs, and spoil the outputs.

        A kernel that knows its inputs by a sample of them takes these for the ones it has seen.
        """
        self._use(self._twin()[0])

    def alternate(self) -> Patch:
        """Spoil the outputs; tell how timed calls come to meet these inputs and slightly others.

        The patch is empty where that would take too many bytes. `check` then takes the variant
        that a call met.
        """
        _, patch = self._twin()
        self._timed = self._current
        self.poison()
        self._trim()
        return patch

    def _twin(self) -> tuple[Prepared, Patch]:
        current = self._current
        if current.twin is None:
            current.twin = self._cache.making_room(partial(self._draw_twin, current))
        return current.twin

    def _draw_twin(self, before: Prepared) -> tuple[Prepared, Patch]:
        """Draw slightly other inputs; all are drawn anew where few other numbers never show."""
        seed = before.seed + 1
        found = self._twins().of(before, seed, given_too=self._changes_given)
        return found or (self._draw(before.workload, before.kind, seed), UNCHANGED)

    def _twins(self) -> Twins:
        asked = self._xp, self._spec, self._layout, self._refer, self._leeway
        return Twins(*asked, self._touched, self._frugal)

    def _choose_variant(self, number: int) -> Prepared:
        """Give the inputs that a timed call met, which are the timed ones with a change."""
        timed = self._timed
        assert timed is not None
        if timed.twin is None:
            return timed
        twin, patch = timed.twin
        if number in (0, 1):
            chosen = (timed, twin)[number]
        else:
            kept = timed.changed.get(number)
            chosen = kept or self._twins().changed(timed, patch.of(number))
        for other in (timed, twin):
            if self._frugal and other is not chosen:  # one reference at a time
                other.forget()
        return chosen

    def _keep_variant(self, number: int) -> None:
        """Keep what a variant is and makes, which other configs may meet, if there is room."""
        timed = self._timed
        if timed is None or number < 2 or number in timed.changed or self._frugal:
            return
        timed.changed[number] = self._current
        if timed.size_bytes > self._memory.cache_bytes * SAME_SHARE:
            del timed.changed[number]

    def leave_given(self) -> bool:
        """Change nothing of what the reference draws from here on; tell whether it was changed."""
        timed, self._changes_given = self._timed, False
        if timed is None or timed.twin is None or not timed.twin[1].changes:
            return False
        changed = {slot.name for slot in self._layout.with_role("input", "inout")} <= timed.given
        if changed:
            timed.twin = None
        return changed

    def compute_reference(self) -> None:
        """Compute the expected outputs unless they are known; the worker may launch meanwhile."""
        self._cache.making_room(partial(self._refer, self._current))
        self._trim()

    def _refer(self, prepared: Prepared) -> None:
        self._answers.refer(prepared, self._layout)
        self._memory.synchronize()

    def _compute_moved(self) -> Moved:
        """Compute, once, the reference of these inputs as roundings could move them."""
        current = self._current
        if not current.moved:
            move = partial(self._answers.move, current, self._layout)
            current.moved = self._cache.making_room(move)
        return current.moved

    def _draw(self, workload: Workload, kind: str, seed: int) -> Prepared:
        return self._answers.draw(workload, kind, seed, self._layout)

    def check(
        self, keep: bool = False, variant: int | None = None, whose: Whose = "config"
    ) -> Correctness:
        """Verify the outputs in the arena; `keep` them for `check_again`.

        `variant` says which of the inputs of `alternate` they were computed from. A `peer` may
        leave what production does not read, and round as it is used to (`PEER_TOLERANCES` and
        `ROUGH`); the `baseline` shows how accurate others have to be, where that is measured.
        """
        if variant is not None:
            self._prepared = self._choose_variant(variant)
        verdict = self._verify(whose=whose)
        if variant is not None:
            self._keep_variant(variant)
        if keep:
            outputs = self._layout.with_role("output", "inout")
            self._current.first_output = {slot.name: self._view(slot).copy() for slot in outputs}
        return verdict

    def check_then_prepare(
        self, workload: Workload, kind: str, seed: int
    ) -> tuple[Correctness, bool]:
        """Verify the outputs and, where they are right, prepare for the next run, in one call.

        That saves every trial of a search the time of a call; its inputs may be used again.
        """
        verdict = self._verify()
        return verdict, verdict.passed and self.prepare(workload, kind, seed, cached=True)

    def check_again(self) -> Correctness:
        """Verify the outputs of a second run, which must have the bits of the first."""
        return self._verify(self._find_other_bits)

    def digest(self) -> tuple[tuple[int, str], ...]:
        """Digest the outputs whose bits have to repeat, or each probe's rows of them.

        What is digested as a whole is number 0, and "" where there is nothing.
        """
        self._memory.pull()
        spec, rows, on = self._spec, self._spec.invariant, self._current.workload
        slots = self._layout.with_role("output", "inout")
        if rows is not None:
            xp, places = self._xp, self._xp.asarray([*self._places.values()])
            named = ((slot.name, self._view(slot)) for slot in slots if slot.name in rows.outputs)
            digests = digest_rows(xp, (rows_of(xp, spec, on, *output)[places] for output in named))
            return tuple(zip(self._places, digests, strict=True))
        repeating = (self._bytes(s) for s in slots if spec.argument(s.name).deterministic)
        return ((0, digest(self._xp, repeating)),)

    def streaming_gbps(self) -> float:
        return streaming_gbps(self._xp)

    def _use(self, prepared: Prepared) -> None:
        for slot in self._layout.with_role("input"):
            self._view(slot)[...] = prepared.inputs[slot.name]
        prepared.first_output, self._prepared = None, prepared
        self.poison()

    def _verify(
        self, then: Callable[[], str] = lambda: "", *, whose: Whose = "config"
    ) -> Correctness:
        self._memory.pull()
        self.compute_reference()
        kind, seed = self._current.told or self._current.kind, self._current.seed
        # NumPy would warn of what wrong outputs hold; the verdict says it.
        with np.errstate(all="ignore"):
            errors, accuracy, reason = self._compare_outputs(whose)
        if reason := reason or then():
            reason = f"with inputs '{kind}' (seed {seed}): {reason}"
            accuracy = ()
        return Correctness(not reason, (kind,), errors, reason, accuracy=accuracy)

    def _compare_outputs(
        self, whose: Whose
    ) -> tuple[tuple[tuple[str, float], ...], tuple[tuple[str, Accuracy], ...], str]:
        outputs = self._layout.with_role("output", "inout")
        expected = {slot.name: self._expect_output(slot) for slot in outputs}
        stored = self._collect_outputs(outputs, whose == "peer")
        if errors := self._look_at_all(outputs, stored, expected):
            return errors, (), ""
        reason, accuracy = self._find_change_elsewhere(), dict[str, Accuracy]()
        for slot in outputs:
            name, more = slot.name, ""
            if name in self._leeway:
                verdict, accuracy[name], more = self._judge_measured(slot, stored[name], whose)
            else:
                tolerance = self._spec.tolerances[name]
                asked = self._xp, stored[name], expected[name], slot.dtype
                verdict = compare(*asked, tolerance)
                whole = slot.dtype not in FLOAT_DTYPES and tolerance == Tolerance()
                if not verdict.passed and whole and self._leeway.floats:
                    excused = is_either(*asked, self._compute_moved, name)
                    verdict = Verdict(1.0) if excused else verdict
                if not verdict.passed and tolerance.tf32:
                    rounded = self._answers.refer_rounded(self._current, self._layout)[name]
                    verdict = compare_between(*asked, rounded, tolerance)
            errors = (*errors, (name, verdict.error))
            asked = self._xp, stored[name], expected[name], slot.dtype
            passed = verdict.passed or (whose == "peer" and self._is_excused(verdict, *asked))
            if not passed and not reason:
                reason = verdict.describe(name, slot.shape) + more
        return errors, tuple(accuracy.items()), reason

    def _is_excused(self, verdict: Verdict, xp: Any, stored: Array, ref: Array, dtype: str) -> bool:
        if verdict.error <= PEER_TOLERANCES or not is_posed(self._spec):
            return verdict.error <= PEER_TOLERANCES
        flat = ref.reshape(-1)
        usual = float(xp.sqrt(xp.vdot(flat, flat) / flat.size))
        return compare(xp, stored, ref, dtype, Tolerance(ROUGH, ROUGH * usual)).passed

    def _judge_measured(
        self, slot: Slot, stored: Array, whose: Whose
    ) -> tuple[Verdict, Accuracy, str]:
        """Judge an output by the baseline's own accuracy; the last part says how far off it is."""
        prepared, is_baseline = self._current, whose == "baseline"
        asked = (self._xp, stored, prepared, slot.name, slot.dtype)
        verdict, accuracy = self._leeway.judge(*asked, baseline=is_baseline)
        if not verdict.passed:
            expected = (self._xp, stored, slot.dtype, prepared, slot.name)
            if (wider := widen(*expected, self._compute_moved)) is not None:
                asked = (self._xp, stored, wider, slot.name, slot.dtype)
                verdict, accuracy = self._leeway.judge(*asked, baseline=is_baseline)
        if verdict.passed:
            return verdict, accuracy, ""
        said = self._leeway.explain(slot.name, accuracy, prepared, baseline=is_baseline)
        return verdict, accuracy, f": {said}"

    def _look_at_all(
        self, outputs: Sequence[Slot], stored: Mapping[str, Array], expected: Mapping[str, Array]
    ) -> tuple[tuple[str, float], ...]:
        tolerances = self._spec.tolerances
        quick = all(can_look_judge(slot.dtype, tolerances[slot.name]) for slot in outputs)
        if self._xp.__name__ != "cupy" or not quick:
            return ()
        kept = self._current.inputs
        pairs = [(self._bytes(s), kept[s.name]) for s in self._layout.with_role("input")]
        pairs += [(b, self._xp.zeros_like(b)) for b in map(self._bytes, self._layout.zeroed)]
        compared = [
            Output(stored[s.name], expected[s.name], s.dtype, tolerances[s.name]) for s in outputs
        ]
        same, found = look(self._memory.data, self._guards, self._guard, pairs, compared)
        names = (slot.name for slot in outputs)
        return tuple(zip(names, found, strict=True)) if same and max(found) <= 1.0 else ()

    def _expect_output(self, slot: Slot) -> Array:
        """Return an output's reference, once it is seen that zeros would not pass for it."""
        prepared = self._current
        assert prepared.reference is not None
        expected = prepared.reference.get(slot.name)
        if expected is None or tuple(expected.shape) != slot.shape:
            found = "nothing" if expected is None else f"shape {tuple(expected.shape)}"
            wrong = f"the reference returns {found} for output {slot.name!r} of shape {slot.shape}"
            remedy = returning(self._answers.names())
            if expected is not None:
                remedy = "return it in this shape, or mend the shape in the search space"
            raise misfit(self._spec.reference, "reference", wrong, remedy)
        known = slot.name in prepared.telling or self._answers.reference.fixed
        if prepared.kind != NORMAL or known:
            return expected
        self._require_no_zeros(slot, expected)
        prepared.telling.add(slot.name)
        return expected

    def _require_no_zeros(self, slot: Slot, expected: Array) -> None:
        prepared, tolerance = self._current, self._spec.tolerances[slot.name]
        if slot.name not in self._leeway:
            if zeros_pass(self._xp, self._view(slot), expected, slot.dtype, tolerance):
                raise Untellable(
                    f"the tolerance of {slot.name!r} is so wide that zeros would pass for most "
                    "of it",
                    path=self._spec.path,
                    remedy="tighten `absolute`, or draw inputs whose outputs are not near zero",
                )
        elif not prepared.limits[slot.name]:
            raise Untellable(
                f"roundings of the inputs decide most of {slot.name!r} on {prepared.workload}: "
                "zeros would pass for it as well",
                path=self._spec.reference,
                remedy="no kernel could be told right: draw inputs that change it less, such as "
                "smaller weights of a recurrence (a `fill` of uniform(-0.05, 0.05), or in a "
                "problem's `Model`), or take fewer steps",
            )

    def _collect_outputs(self, outputs: Sequence[Slot], peer: bool) -> Mapping[str, Array]:
        """Give the outputs as they are compared: in the reference's order where any is right."""
        stored: Mapping[str, Array] = {slot.name: self._view(slot) for slot in outputs}
        if peer:
            stored = self._changed_by("unread", self._answers.reference.unread, stored)
        return self._changed_by("canonical", self._answers.reference.canonical, stored)

    def _changed_by(
        self, name: str, function: CanonicalFunction | None, stored: Mapping[str, Array]
    ) -> Mapping[str, Array]:
        if function is None:
            return stored
        workload = self._current.workload
        with blamed_on(self._spec.reference, f"`{name}` fails on {workload}"):
            changed = function(self._xp, stored, workload.values)
            require_dict(self._spec.reference, name, changed, stored)
            # Comparing checks neither: NumPy and CuPy would broadcast.
            for output, values in changed.items():
                if (values.shape, values.dtype) != (stored[output].shape, stored[output].dtype):
                    raise TypeError(f"{output!r} has shape {values.shape} and is {values.dtype}")
        return {**stored, **changed}

    def _find_change_elsewhere(self) -> str:
        for index, (start, stop) in enumerate(self._layout.guards):
            if not bool((self._memory.data[start:stop] == self._guard).all()):
                names = [slot.name for slot in self._layout.slots]
                near = f"before {names[index]}" if index < len(names) else f"after {names[-1]}"
                return f"wrote outside its buffers ({near})"
        for slot in self._layout.with_role("input"):
            if not self._equal_bits(slot, self._current.inputs[slot.name]):
                return f"changed its input {slot.name!r}"
        for slot in self._layout.zeroed:
            if is_any(self._xp, self._bytes(slot)):
                values = decode(self._xp, self._view(slot), slot.dtype).reshape(-1)
                # A float's -0 is other bits, and equal to 0.
                first = int((self._bytes(slot) != 0).argmax()) // storage_dtype(slot.dtype).itemsize
                where = ", ".join(map(str, np.unravel_index(first, slot.shape)))
                return f"left scratch {slot.name}[{where}] = {float(values[first]):g}, expected 0"
        return ""

    def _find_other_bits(self) -> str:
        before = self._current.first_output or {}
        for slot in self._layout.with_role("output", "inout"):
            repeats = self._spec.argument(slot.name).deterministic
            if repeats and not self._equal_bits(slot, before[slot.name]):
                return f"{BITS_DIFFER} of {slot.name!r} for the same inputs in a second run"
        return ""

    def _equal_bits(self, slot: Slot, other: Array) -> bool:
        # As wide as they come, and not as floats: NaN differs from itself.
        bits = "u8" if slot.size_bytes % 8 == 0 else "u1"
        return is_all(self._xp, self._bytes(slot).view(bits) == other.reshape(-1).view(bits))

    def _bytes(self, slot: Slot) -> Array:
        return self._memory.data[slot.offset : slot.offset + slot.size_bytes]

    def _view(self, slot: Slot) -> Array:
        return self._bytes(slot).view(storage_dtype(slot.dtype)).reshape(slot.shape)

    @property
    def _layout(self) -> Layout:
        assert self._arena is not None
        return self._arena.layout

    @property
    def _current(self) -> Prepared:
        assert self._prepared is not None
        return self._prepared
