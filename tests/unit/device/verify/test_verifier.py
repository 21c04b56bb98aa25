"""The verifier, on NumPy: what passes for a right kernel, and everything that doesn't."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tuner.device.encoding import decode, encode, storage_dtype
from tuner.device.inputs import INPUT_KINDS
from tuner.device.layout import lay_out
from tuner.device.verify import accuracy
from tuner.device.verify.verifier import PEER_TOLERANCES, HostMemory, Verifier
from tuner.model.errors import KernelError
from tuner.model.kernel import KernelSpec, Tolerance, TorchText, Workload
from tuner.model.trial import Correctness

MakeSpec = Callable[..., KernelSpec]
WORKLOAD = Workload.of({"T": 300})
ARGUMENTS = (
    ("y", "bfloat16", ("T", "4"), "output"),
    ("x", "bfloat16", ("T", "4"), "input"),
    ("n", "int32", "T * 4"),
)


class Bench:
    """A verifier, its memory, and kernels to launch on it."""

    def __init__(
        self,
        spec: KernelSpec,
        operators: dict[str, str] | None = None,
        memory: HostMemory | None = None,
    ) -> None:
        self.memory = memory or HostMemory()
        self.verifier = Verifier(self.memory, spec, operators or {})
        self.layout = lay_out(spec, WORKLOAD.values)
        self.verifier.open_arena(WORKLOAD, self.layout)

    def stored(self, name: str) -> np.ndarray:
        slot = next(slot for slot in self.layout.slots if slot.name == name)
        piece = self.memory.data[slot.offset : slot.offset + slot.size_bytes]
        return piece.view(storage_dtype(slot.dtype)).reshape(slot.shape)

    def double(self) -> None:
        self.stored("y")[...] = encode(np, 2 * decode(np, self.stored("x"), "bfloat16"), "bfloat16")

    def checked(
        self, kernel: Callable[[], None], fill: str = "normal", seed: int = 1
    ) -> Correctness:
        with np.errstate(over="ignore"):
            self.verifier.prepare(WORKLOAD, fill, seed)
            self.verifier.compute_reference()
            kernel()
            return self.verifier.check(keep=True)

    def again(self, kernel: Callable[[], None]) -> Correctness:
        self.verifier.poison()
        kernel()
        return self.verifier.check_again()


@pytest.fixture
def bench(make_spec: MakeSpec) -> Bench:
    return Bench(make_spec(*ARGUMENTS))


def nothing() -> None:
    pass


@pytest.mark.parametrize("fill", INPUT_KINDS)
def test_a_right_kernel_and_no_idle_one_passes_with_every_fill(bench: Bench, fill: str) -> None:
    verdict = bench.checked(bench.double, fill)
    assert verdict.passed, verdict.reason
    assert verdict.input_kinds == (fill,)
    assert [name for name, error in verdict.errors if error <= 1.0] == ["y"]
    idle = bench.checked(nothing, fill, seed=77)
    assert not idle.passed, "one that skips the work"
    assert idle.reason.startswith(f"with inputs '{fill}' (seed 77): y[")


def test_equal_seeds_give_equal_inputs(bench: Bench) -> None:
    drawn = []
    for seed in (5, 5, 6):
        bench.verifier.prepare(WORKLOAD, "normal", seed)
        drawn.append(bench.stored("x").copy())
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])


def test_every_config_of_a_workload_gets_the_same_inputs_once(make_spec: MakeSpec) -> None:
    seen = []
    for cache_bytes in (0, 1 << 20):
        bench = Bench(make_spec(*ARGUMENTS))
        bench.memory.cache_bytes = cache_bytes
        for _ in range(2):
            bench.verifier.prepare_same(WORKLOAD)
            bench.double()
            seen.append((bench.verifier.digest(), bench.stored("x").tobytes()))
            bench.verifier.prepare(WORKLOAD, "normal", 7)
    assert len(set(seen)) == 1
    bench.verifier.prepare_same(WORKLOAD)
    bench.double()
    bench.stored("y")[0, 0] += 1
    assert bench.verifier.digest() != seen[0][0]


def test_outputs_whose_bits_may_vary_are_not_digested(make_spec: MakeSpec) -> None:
    spec = make_spec(*ARGUMENTS)
    first, *others = spec.arguments
    bench = Bench(replace(spec, arguments=(replace(first, deterministic=False), *others)))
    bench.verifier.prepare_same(WORKLOAD)
    bench.double()
    assert bench.verifier.digest() == ((0, ""),)


def test_a_last_element_that_nobody_wrote_is_found(bench: Bench) -> None:
    def all_but_one() -> None:
        last = bench.stored("y")[-1, -1]
        bench.double()
        bench.stored("y")[-1, -1] = last

    for seed in range(2):  # both patterns that outputs are spoiled with
        verdict = bench.checked(all_but_one, seed=seed)
        assert not verdict.passed
        assert "y[299, 3]" in verdict.reason


def test_outputs_and_scratch_are_filled_with_another_byte_each_time(make_spec: MakeSpec) -> None:
    spec = make_spec(*ARGUMENTS, ("room", "float32", ("T",), "scratch"))
    bench, seen = Bench(spec), []
    for seed in range(40):
        bench.verifier.prepare(WORKLOAD, "normal", seed)
        values = {*np.unique(bench.stored("y").view("u1"))}
        assert values == {*np.unique(bench.stored("room").view("u1"))}
        seen += values
    assert len(seen) == 40
    assert len(set(seen)) > 10
    assert all(one != other for one, other in pairwise(seen))


@pytest.mark.parametrize(
    ("slot", "offset", "place"),
    [
        (0, -1, "before y"),
        (0, 300 * 4 * 2, "before x"),
        (1, -1, "before x"),
        (1, 300 * 4 * 2, "after x"),
        (1, 300 * 4 * 2 + 4000, "after x"),
    ],
)
def test_writing_outside_is_found(bench: Bench, slot: int, offset: int, place: str) -> None:
    def stray() -> None:
        bench.double()
        bench.memory.data[bench.layout.slots[slot].offset + offset] ^= 1

    verdict = bench.checked(stray)
    assert not verdict.passed
    assert f"wrote outside its buffers ({place})" in verdict.reason
    assert bench.checked(bench.double).passed, "the guards are renewed"


def test_a_changed_input_is_found(bench: Bench) -> None:
    def spoiling() -> None:
        bench.double()
        bench.stored("x")[7, 2] ^= 1

    verdict = bench.checked(spoiling)
    assert not verdict.passed
    assert "changed its input 'x'" in verdict.reason


def test_a_second_run_must_give_the_same_bits(bench: Bench) -> None:
    def wobbling() -> None:
        bench.double()
        bench.stored("y")[3, 0] ^= 1

    assert bench.checked(bench.double).passed
    assert bench.again(bench.double).passed
    verdict = bench.again(wobbling)
    assert not verdict.passed
    assert "other bits of 'y'" in verdict.reason


def test_nan_in_both_runs_is_the_same(make_spec: MakeSpec) -> None:
    reference = 'def reference(xp, inputs, axes): return {"y": inputs["x"] * xp.nan}\n'
    bench = Bench(make_spec(*ARGUMENTS, reference=reference))
    assert bench.checked(lambda: bench.stored("y").fill(0x7FC0)).passed
    assert bench.again(lambda: bench.stored("y").fill(0x7FC0)).passed


INOUT = (("s", "float32", ("T",), "inout"), ("x", "float32", ("T",), "input"))
ADD = 'def reference(xp, inputs, axes): return {"s": inputs["s"] + inputs["x"]}\n'


def test_an_argument_that_is_read_and_written_starts_anew_for_every_run(
    make_spec: MakeSpec,
) -> None:
    bench = Bench(make_spec(*INOUT, reference=ADD))

    def add() -> None:
        bench.stored("s")[...] += bench.stored("x")

    assert bench.checked(add).passed
    assert bench.again(add).passed
    assert not bench.again(nothing).passed, "what an earlier kernel left does not help"
    assert not bench.checked(nothing).passed


def test_the_choice_of_the_operator_reaches_the_reference(make_spec: MakeSpec) -> None:
    reference = (
        "def reference(xp, inputs, axes, FACTOR='1'):\n"
        "    return {'y': int(FACTOR) * inputs['x'] * (axes['T'] == 300)}\n"
    )
    spec = make_spec(*ARGUMENTS, reference=reference)
    twice, once = Bench(spec, {"FACTOR": "2"}), Bench(spec)
    assert twice.checked(twice.double).passed
    assert not once.checked(once.double).passed


@pytest.mark.parametrize(
    ("returned", "line", "message"),
    [
        ("{}", 1, "returns nothing for output 'y'"),
        ("{'y': inputs['x'][0]}", 1, "returns shape (4,) for output 'y' of shape (300, 4)"),
        ("None", 1, "`reference` returns None, not a dict of arrays by name"),
        ("inputs['x']", 1, "`reference` returns a value of type ndarray, not a dict"),
        ("{'y': inputs['z']}", 1, "fails on T=300: KeyError: 'z'"),
        ("exit(4)", 1, "fails on T=300: SystemExit: 4"),
    ],
)
def test_a_reference_that_does_not_fit_is_the_users_mistake(
    make_spec: MakeSpec, returned: str, line: int | None, message: str
) -> None:
    spec = make_spec(*ARGUMENTS, reference=f"def reference(xp, inputs, axes): return {returned}\n")
    bench = Bench(spec)
    with pytest.raises(KernelError) as caught:
        bench.checked(bench.double)
    assert (caught.value.path, caught.value.line) == (spec.reference, line)
    assert message in caught.value.message


def test_a_tolerance_that_zeros_pass_is_the_users_mistake(make_spec: MakeSpec) -> None:
    bench = Bench(make_spec(*ARGUMENTS, tolerances={"y": Tolerance(absolute=100.0)}))
    with pytest.raises(KernelError, match="zeros would pass for most of it"):
        bench.checked(bench.double)


OWN_INPUTS = """\
def reference(xp, inputs, axes): return {"y": 2.0 * inputs["x"]}
def inputs(xp, rng, axes, fill): return RETURNED
"""


def test_a_reference_file_may_draw_its_own_inputs(make_spec: MakeSpec) -> None:
    own = "{'x': xp.full((axes['T'], 4), 3.0 if fill == 'normal' else 5.0)}"
    bench = Bench(make_spec(*ARGUMENTS, reference=OWN_INPUTS.replace("RETURNED", own)))
    assert bench.checked(bench.double).passed
    assert set(decode(np, bench.stored("x"), "bfloat16").ravel()) == {3.0}
    assert bench.checked(bench.double, "zeros").passed
    assert set(decode(np, bench.stored("x"), "bfloat16").ravel()) == {5.0}


def test_what_is_timed_has_no_negative_zero(make_spec: MakeSpec) -> None:
    own = "{'x': xp.where(xp.arange(4) == 1, -0.0, xp.ones((axes['T'], 4)))}"
    bench = Bench(make_spec(*ARGUMENTS, reference=OWN_INPUTS.replace("RETURNED", own)))
    assert bench.checked(bench.double).passed
    assert not np.signbit(decode(np, bench.stored("x"), "bfloat16")).any()
    assert bench.checked(bench.double, "extreme").passed
    assert np.signbit(decode(np, bench.stored("x"), "bfloat16"))[:, 1].all()


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("{'x': xp.ones(4)}", r"shape \(4,\) for 'x', which needs \(300, 4\)"),
        ("{'z': xp.ones(4)}", "for 'z', which is no input"),
        ("{'y': xp.ones((300, 4))}", "for 'y', which is no input"),
        ("{'x': 3}", r"returns a value of type int for 'x', which needs \(300, 4\)"),
        ("fill", "returns a value of type str, not a dict of arrays by name"),
    ],
)
def test_own_inputs_that_do_not_fit_are_the_users_mistake(
    make_spec: MakeSpec, returned: str, message: str
) -> None:
    bench = Bench(make_spec(*ARGUMENTS, reference=OWN_INPUTS.replace("RETURNED", returned)))
    with pytest.raises(KernelError, match=message):
        bench.checked(bench.double)


def test_the_worst_error_is_kept_with_a_pass(bench: Bench) -> None:
    def slightly_off() -> None:
        bench.double()
        bench.stored("y")[...] += 1  # the next number of bfloat16: up to 2**-7 away

    verdict = bench.checked(slightly_off)
    assert verdict.passed
    assert 0.9 < dict(verdict.errors)["y"] <= 1.0


def test_a_new_workload_gets_memory_of_its_own(make_spec: MakeSpec) -> None:
    spec = make_spec(*ARGUMENTS)
    bench, small = Bench(spec), Workload.of({"T": 2})
    layout = lay_out(spec, small.values)
    arena = bench.verifier.open_arena(small, layout)
    assert (arena.key, len(bench.memory.data)) == ("T=2", layout.total_bytes)
    bench.verifier.prepare(small, "normal", 1)
    bench.layout = layout
    bench.double()
    assert bench.verifier.check().passed
    bench.verifier.close_arena()
    assert bench.memory.data is None


def test_a_peer_may_round_a_little_otherwise_and_nobody_else(bench: Bench) -> None:
    def scaled(factor: float) -> Callable[[], None]:
        def kernel() -> None:
            values = factor * 2 * decode(np, bench.stored("x"), "bfloat16")
            bench.stored("y")[...] = encode(np, values, "bfloat16")

        return kernel

    near, far = scaled(1.02), scaled(1.3)
    assert not bench.checked(near).passed
    near_verdict = bench.verifier.check(whose="peer")
    assert near_verdict.passed
    assert 1.0 < near_verdict.errors[0][1] <= PEER_TOLERANCES
    assert not bench.checked(far).passed
    assert not bench.verifier.check(whose="peer").passed


@pytest.mark.parametrize(("factor", "passes"), [(1.02, True), (1.3, False), (math.nan, False)])
def test_a_peer_of_a_problem_may_be_as_rough_as_tf32_but_no_other_function(
    make_spec: MakeSpec, factor: float, passes: bool
) -> None:
    spec = replace(make_spec(*ARGUMENTS), tolerances={"y": Tolerance(1e-6, 1e-6)})
    bench = Bench(spec)

    def kernel() -> None:
        values = factor * 2 * decode(np, bench.stored("x"), "bfloat16")
        bench.stored("y")[...] = encode(np, values, "bfloat16")

    assert not bench.checked(kernel).passed
    assert not bench.verifier.check(whose="peer").passed
    bench.verifier._spec = replace(spec, torch=TorchText("2 * x", 1))
    verdict = bench.verifier.check(whose="peer")
    assert verdict.passed is passes
    assert verdict.errors[0][1] > PEER_TOLERANCES, "and that is told"
    assert not bench.verifier.check().passed


def test_what_production_never_reads_counts_for_kernels_only(make_spec: MakeSpec) -> None:
    unread = """
def unread(xp, outputs, axes):
    values = outputs["y"].copy()
    values[-1] = 0
    return {"y": values}
"""
    doubled = 'def reference(xp, inputs, axes):\n    y = 2.0 * inputs["x"]\n    y[-1] = 0.0\n'
    bench = Bench(make_spec(*ARGUMENTS, reference=doubled + '    return {"y": y}\n' + unread))
    assert not bench.checked(bench.double).passed
    assert bench.verifier.check(whose="peer").passed
    bench.stored("y")[0] = 0
    assert not bench.verifier.check(whose="peer").passed


def test_what_is_in_the_arena_is_not_drawn_again_but_restored(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, draw = [], bench.verifier._draw
    monkeypatch.setattr(
        bench.verifier, "_draw", lambda *which: drawn.append(which[1:]) or draw(*which)
    )
    assert bench.checked(bench.double, "x3", seed=5).passed
    before = bench.stored("x").copy()
    bench.stored("x")[...] = 7
    assert bench.verifier.prepare(WORKLOAD, "x3", 5), "its reference is known"
    assert np.array_equal(bench.stored("x"), before)
    assert not bench.verifier.check().passed, "the outputs were spoiled"
    bench.verifier.prepare(WORKLOAD, "zeros", 5)
    bench.verifier.prepare(WORKLOAD, "zeros", 6)
    bench.verifier.prepare(WORKLOAD, "x3", 5)
    assert drawn == [("x3", 5), ("zeros", 5), ("zeros", 6), ("x3", 5)]


def test_slightly_other_inputs_cost_no_draw_of_all(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench.checked(bench.double).passed
    monkeypatch.setattr(bench.verifier, "_draw", None)
    patch = bench.verifier.alternate()
    assert all(0 < len(change.offsets) <= 2 for change in patch.changes), "one number of x"
    assert patch.changes[0].before != patch.changes[0].after
    bench.verifier.touch()
    bench.double()
    assert bench.verifier.check().passed


class Trimmed(HostMemory):
    """Notes how much of what was freed may stay where it is, each time that it is given back."""

    def __init__(self) -> None:
        super().__init__(cache_bytes=1 << 20)
        self.spared: list[int] = []

    def trim(self, spare_bytes: int = 0) -> None:
        self.spared.append(spare_bytes)


def test_what_is_let_go_was_kept_for_later_and_is_drawn_again(make_spec: MakeSpec) -> None:
    memory = Trimmed()
    bench = Bench(make_spec(*ARGUMENTS), memory=memory)
    assert bench.checked(bench.double).passed
    assert set(memory.spared) == {1 << 20}, "of what drawing took others get most"
    memory.spared.clear()
    bench.verifier.let_go()
    assert bench.verifier.check().passed
    assert bench.checked(bench.double).passed
    assert len(memory.spared) > 1
    assert set(memory.spared) == {0}, "once memory has ended they get all of it"


def test_once_memory_has_ended_nothing_is_kept_for_later_until_another_workload_is_opened(
    make_spec: MakeSpec,
) -> None:
    spec = make_spec(*ARGUMENTS)
    verifier = Verifier(HostMemory(cache_bytes=1 << 20), spec, {})

    def opened(workload: Workload) -> None:
        verifier.open_arena(workload, lay_out(spec, workload.values))

    def known_again() -> bool:
        """Draw twice, with a reference: the second time it may be known."""
        for _ in range(2):
            known = verifier.prepare(WORKLOAD, "x3", 5, True)
            verifier.compute_reference()
            verifier.prepare(WORKLOAD, "normal", 6)
        return known

    opened(WORKLOAD)
    assert known_again()
    verifier.prepare_same(WORKLOAD)
    assert verifier._same is not None
    verifier.let_go()
    assert not known_again()
    verifier.prepare_same(WORKLOAD)
    assert verifier._same is None
    opened(WORKLOAD)
    assert not known_again()
    opened(Workload.of({"T": 2 * WORKLOAD.values["T"]}))
    opened(WORKLOAD)
    assert known_again()


@pytest.mark.parametrize(("room", "held"), [(0.5, 1), (2.0, 2)])
def test_a_large_arena_is_begun_with_one_reference_at_a_time(
    make_spec: MakeSpec, room: float, held: int
) -> None:
    memory = HostMemory(cache_bytes=1 << 20)
    memory.large_bytes = lay_out(make_spec(*ARGUMENTS), WORKLOAD.values).total_bytes * room
    bench = Bench(make_spec(*ARGUMENTS), memory=memory)
    assert bench.checked(bench.double).passed
    bench.verifier.alternate()
    timed = bench.verifier._timed
    assert timed is not None
    assert timed.twin is not None
    sets = (timed, timed.twin[0])
    assert sum(prepared.reference is not None for prepared in sets) == held


def test_once_memory_has_ended_one_reference_is_held_at_a_time(bench: Bench) -> None:
    bench.verifier.let_go()
    assert bench.checked(bench.double).passed
    patch = bench.verifier.alternate()
    timed = bench.verifier._timed
    assert timed is not None
    assert timed.twin is not None
    for number in (1, 0, 2, 1):
        x = bench.verifier._choose_variant(number).inputs["x"]
        bench.verifier._view(bench.verifier._layout.slot("x"))[...] = x
        bench.double()
        assert bench.verifier.check(variant=number).passed
        held = [one.reference is not None for one in (timed, timed.twin[0])]
        assert held == [number == 0, number == 1]
    assert len(patch.changes) > 1


@pytest.mark.parametrize("step", ["_draw", "_refer", "_draw_twin"])
def test_memory_that_ends_once_costs_a_second_try(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    attempt, failures = getattr(bench.verifier, step), [MemoryError()]

    def short_once(*given: object) -> object:
        if failures:
            raise failures.pop()
        return attempt(*given)

    monkeypatch.setattr(bench.verifier, step, short_once)
    assert bench.checked(bench.double).passed
    assert bench.verifier.alternate().changes
    assert not failures


def test_scales_for_which_memory_ended_are_computed_again(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = {"y": Tolerance(measured=True)}
    bench = Bench(make_spec(*ARGUMENTS, tolerances=measured))
    attempt, failures = accuracy.nudge, [MemoryError()]

    def short_once(*given: object) -> None:
        if failures:
            raise failures.pop()
        attempt(*given)

    monkeypatch.setattr(accuracy, "nudge", short_once)
    assert bench.checked(bench.double).passed
    assert not failures


FIXED = """
import numpy as np
fixed = True
def inputs(xp, rng, axes, fill): return {"x": np.ones((axes["T"], 4))}
def reference(xp, inputs, axes): return {"y": np.zeros((axes["T"], 4))}
"""


def test_an_answer_to_fixed_inputs_is_compared_on_these_alone_and_may_be_zero(
    make_spec: MakeSpec,
) -> None:
    bench = Bench(make_spec(*ARGUMENTS, reference=FIXED))

    def clear() -> None:
        bench.stored("y")[...] = 0

    assert bench.checked(clear).passed
    assert bench.verifier.alternate().changes == ()
    assert not bench.checked(bench.double, seed=2).passed
