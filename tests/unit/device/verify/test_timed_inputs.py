"""Which inputs a search times its configs on: the same for all of a workload, told to nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from idle_runner import IdleRunner

from tuner.device.base import DeviceInfo, Program
from tuner.device.inputs import NORMAL, USES, InputCache, Prepared
from tuner.device.layout import UNCHANGED, Arena, InputChange, Layout, Patch
from tuner.device.verify.restarting_worker import Judge, Rows, RunFailedError
from tuner.device.verify.verified_device import VerifiedDevice
from tuner.model.errors import OutOfMemory
from tuner.model.kernel import KernelSpec, Launch, Workload
from tuner.model.trial import Correctness, Status

SMALL, LARGE = Workload.of({"T": 8}), Workload.of({"T": 64})
ARRAYS = (("y", "float32", ("T",), "output"), ("x", "float32", ("T",), "input"))
INFO = DeviceInfo("a GPU", "sm_90a", (9, 0), 132, 1, 1.0, recorded=False)


class Verifying:
    """A verifier's process that notes the inputs it is asked for, and fails when it is told to."""

    def __init__(self) -> None:
        self.seeds: list[tuple[str, int]] = []
        # Whether outputs of verified runs are wrong, and those of timed calls.
        self.fails = self.fails_timed = False

    def call(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        if method == "open_arena":
            return Arena(arguments[0].key, Layout((), (), 0), None, None)
        if method in ("prepare", "check_then_prepare"):
            _, kind, seed, *cached = arguments
            if any(cached) or method == "check_then_prepare":
                self.seeds.append((kind, seed))
        if method == "check_then_prepare":
            return Correctness(True, ("x3",)), True
        if method.startswith("check"):
            _, variant, *_ = (*arguments, None, None)
            wrong = self.fails if variant is None else self.fails_timed
            return Correctness(not wrong, (NORMAL,), reason="wrong" if wrong else "")
        return UNCHANGED if method == "alternate" else method != "leave_given"

    def timed(self) -> list[int]:
        return [seed for kind, seed in self.seeds if kind == NORMAL]

    def others(self) -> list[int]:
        return [seed for kind, seed in self.seeds if kind != NORMAL]


@pytest.fixture
def verifier() -> Verifying:
    return Verifying()


@pytest.fixture
def device(verifier: Verifying, make_spec: Callable[..., KernelSpec]) -> VerifiedDevice:
    return timing(verifier, IdleRunner(), make_spec(*ARRAYS))


def timing(
    verifier: Verifying, runner: IdleRunner, spec: KernelSpec, info: DeviceInfo = INFO
) -> VerifiedDevice:
    return VerifiedDevice(info, spec, verifier, runner)  # type: ignore[arg-type]


def config(name: str, workload: Workload = SMALL) -> Program:
    return Program(name, workload, (Launch("k", (1, 1, 1), (32, 1, 1)),))


def test_configs_of_a_workload_are_timed_on_the_same_inputs(
    device: VerifiedDevice, verifier: Verifying
) -> None:
    for program in (config("a"), config("b"), config("c", LARGE), config("d")):
        assert device.run(program).status is Status.CORRECT
    first, second, large, again = verifier.timed()
    assert first == second == again != large, "also when another workload was open meanwhile"
    assert len(set(verifier.others())) == 4, "what else is verified is not"


@pytest.mark.parametrize("wrong", ["fails", "fails_timed"])
def test_inputs_whose_seed_was_told_are_never_timed_again(
    device: VerifiedDevice, verifier: Verifying, wrong: str
) -> None:
    device.run(config("a"))
    setattr(verifier, wrong, True)
    assert device.run(config("b")).status is Status.INCORRECT
    setattr(verifier, wrong, False)
    device.run(config("c"))
    first, told, new = verifier.timed()
    assert first == told != new


def test_finals_and_their_checks_draw_their_own(
    device: VerifiedDevice, verifier: Verifying
) -> None:
    device.run(config("a"))
    (timed,) = verifier.timed()
    seen: list[Any] = []
    kept = verifier.call

    def call(method: str, *arguments: Any, timeout_s: float) -> Any:
        seen.append((method, *arguments))
        return kept(method, *arguments, timeout_s=timeout_s)

    verifier.call = call  # type: ignore[method-assign]
    device.run(config("a"), full_verification=True)
    device.rank([config("a"), config("b")], rounds=3)
    assert any(one[0] == "prepare" and NORMAL in one for one in seen)
    assert all(timed not in one for one in seen)


@pytest.mark.parametrize(
    ("offsets", "wrong", "drawn"),
    [((), False, 1), ((), True, 2), ((3,), True, 0)],
    ids=["once for all", "anew after one that is wrong", "not where there are variants"],
)
def test_without_variants_what_is_compared_runs_again_on_other_inputs(
    device: VerifiedDevice,
    verifier: Verifying,
    offsets: tuple[int, ...],
    wrong: bool,
    drawn: int,
) -> None:
    asked: list[str] = []
    kept = verifier.call

    def call(method: str, *arguments: Any, timeout_s: float) -> Any:
        asked.append(method)
        if method == "touch":
            # Who has kept results is wrong from here on.
            verifier.fails = wrong
        if method == "alternate":
            return Patch((InputChange(offsets, b"a", b"b"),) if offsets else ())
        return kept(method, *arguments, timeout_s=timeout_s)

    verifier.call = call  # type: ignore[method-assign]
    peer = replace(config("b"), peer="pytorch")
    found = device.compare([config("a"), config("c"), peer], rounds=9)
    said = "wrong" if wrong and not offsets else ""
    assert found.faults == (said, said, "")
    assert asked.count("touch") == drawn


class Timing(IdleRunner):
    """Notes the rounds of each draw of inputs; its times rise from round to round."""

    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.judged: list[bool] = []

    def compare(
        self, programs: Sequence[Program], rounds: int, patch: Patch, judge: Judge | None
    ) -> Rows:
        self.rounds.append(rounds)
        self.judged.append(judge is not None)
        for index in range(len(programs) if judge is not None else 0):
            judge(index, 0, True)
        return [(round_, 10.0 * round_) for round_ in range(rounds)]


@pytest.fixture
def runner() -> Timing:
    return Timing()


@pytest.mark.parametrize(("rounds", "draws"), [(1, 1), (2, 2), (12, 3), (96, 3)])
def test_rounds_are_compared_on_three_draws_of_inputs(
    verifier: Verifying,
    runner: Timing,
    make_spec: Callable[..., KernelSpec],
    rounds: int,
    draws: int,
) -> None:
    device = timing(verifier, runner, make_spec(*ARRAYS))
    found = device.compare([config("a"), config("c")], rounds=rounds)
    assert (len(runner.rounds), sum(runner.rounds)) == (draws, rounds)
    assert len(found.times_us) == rounds


def test_where_inputs_decide_how_much_there_is_to_do_each_row_has_its_own(
    verifier: Verifying, runner: Timing, make_spec: Callable[..., KernelSpec]
) -> None:
    routes = ("routes", "int32", ("T",), "input", "indices")
    device = timing(verifier, runner, make_spec(*ARRAYS, routes))
    compared = device.compare([config("a"), config("c")], rounds=96).times_us
    assert len(compared) == len(runner.rounds) == 48, "of two rounds on average"
    assert set(runner.rounds) == {1, 2, 3}, "so that nobody foresees which one is judged"
    for row, rounds in zip(compared, runner.rounds, strict=True):
        middle = (rounds - 1) / 2
        assert row == (middle, 10.0 * middle), "the mean of its rounds"
    assert runner.judged.count(True) == 12, "in so many nobody gets away with what was right once"
    ranked = device.rank([config("a"), config("c")], rounds=12)
    assert len(ranked) == 12
    assert len(runner.rounds) == 48 + 12
    assert runner.judged[48:].count(True) == 3


def test_what_is_wrong_on_the_draws_that_are_judged_is_at_fault(
    verifier: Verifying, runner: Timing, make_spec: Callable[..., KernelSpec]
) -> None:
    routes = ("routes", "int32", ("T",), "input", "indices")
    device = timing(verifier, runner, make_spec(*ARRAYS, routes))
    verifier.fails_timed = True
    assert device.rank([config("a"), config("c")], rounds=12) == [(None, None)] * 12


def test_a_cpu_compares_on_three_draws_whatever_inputs_decide(
    verifier: Verifying, runner: Timing, make_spec: Callable[..., KernelSpec]
) -> None:
    spec = make_spec(*ARRAYS, ("routes", "int32", ("T",), "input", "indices"))
    device = timing(verifier, runner, spec, replace(INFO, on_cpu=True))
    assert len(device.compare([config("a"), config("c")], rounds=12).times_us) == 12
    assert len(runner.rounds) == 3


def test_who_crashes_on_other_inputs_is_at_fault_alone(
    device: VerifiedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rerun(self: IdleRunner, program: Program) -> None:
        if program.source_key == "a":
            raise RunFailedError(Status.LAUNCH, "the worker process died")

    monkeypatch.setattr(IdleRunner, "rerun", rerun)
    found = device.compare([config("c"), config("a"), config("d")], rounds=9)
    assert found.faults == ("", "the worker process died", "")


def prepared(kind: str, seed: int) -> Prepared:
    return Prepared(SMALL, kind, seed, {"x": np.zeros(1)}, {"y": np.zeros(1)})


def test_a_set_of_ordinary_inputs_serves_whoever_asks_for_its_seed() -> None:
    cache = InputCache(1 << 10, lambda: None)
    cache.put(prepared(NORMAL, 5))
    for _ in range(2 * USES):
        assert cache.take(NORMAL, 5) is not None
    assert cache.take(NORMAL, 6) is None, "its seed is another"


def test_a_set_of_another_kind_serves_so_many_checks() -> None:
    cache = InputCache(1 << 10, lambda: None)
    cache.put(prepared("x3", 5))
    served = [cache.take("x3", seed) is not None for seed in range(10, 12 + USES)]
    assert served == [True] * (USES - 1) + [False] * 3


def test_where_memory_ends_what_is_kept_makes_room() -> None:
    trimmed: list[bool] = []
    cache = InputCache(1 << 10, lambda: trimmed.append(True))
    cache.put(prepared(NORMAL, 5))

    def drawn() -> str:
        if cache.take(NORMAL, 5) is not None:
            raise MemoryError
        return "drawn"

    assert cache.making_room(drawn) == "drawn"
    assert cache.take(NORMAL, 5) is None
    assert trimmed == [True]


def test_where_nothing_makes_room_the_error_is_told() -> None:
    def drawn() -> None:
        raise MemoryError("7.5 GB")

    with pytest.raises(MemoryError, match="GB"):
        InputCache(1 << 10, lambda: None).making_room(drawn)


@pytest.mark.parametrize("failure", [MemoryError("27 GB"), None])
def test_memory_that_ends_beside_the_verifier_is_let_go_there_before_it_is_tried_again(
    device: VerifiedDevice, verifier: Verifying, monkeypatch: pytest.MonkeyPatch, failure: Any
) -> None:
    asked: list[str] = []
    call, killed = verifier.call, RunFailedError(Status.RESOURCE_LIMIT, "27 GB", killed=True)

    def noted(method: str, *arguments: Any, timeout_s: float) -> Any:
        asked.append(method)
        return call(method, *arguments, timeout_s=timeout_s)

    def short(*_: object) -> Any:
        if "let_go" not in asked:
            raise failure or killed
        return [(1.0, 1.0)] * 6

    monkeypatch.setattr(verifier, "call", noted)
    detached: list[int] = []
    detach = device._runner.detach

    def noted_detach() -> None:
        detached.append(len(asked))
        detach()

    monkeypatch.setattr(device._runner, "compare", short)
    monkeypatch.setattr(device._runner, "detach", noted_detach)
    assert len(device.rank([config("a"), config("b")], rounds=6)) == 6
    assert asked.count("let_go") == 1
    assert asked.index("let_go") in detached, "the worker lets go first"


def test_who_has_no_memory_even_then_is_told_from_others_that_fail(
    device: VerifiedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: object) -> Any:
        raise RunFailedError(Status.RESOURCE_LIMIT, "27 GB", killed=True)

    monkeypatch.setattr(device._runner, "compare", short)
    with pytest.raises(OutOfMemory, match="27 GB"):
        device.compare([config("a"), config("b")], rounds=6)
