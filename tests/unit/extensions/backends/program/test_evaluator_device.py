"""A program of the user's as a device: what it is asked, what it may answer, how it may fail."""

from __future__ import annotations

import json
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from faults import wait_until

from tuner.device.base import Device, DeviceInfo, Program
from tuner.device.select import open_device
from tuner.extensions.backends.program import device as evaluator_device
from tuner.extensions.backends.program.command import Answer, Described, json_schema
from tuner.extensions.backends.program.device import ALTERNATIONS, MOST_FAULTS, EvaluatorDevice
from tuner.model.config import Config
from tuner.model.errors import DeviceError
from tuner.model.hardware import amd_limits, limits_for, occupancy
from tuner.model.kernel import KernelSpec, Launch, Workload
from tuner.model.trial import Resources, Status
from tuner.space.load import load_definition
from tuner.testing.devices import DeviceContract

ROOT = Path(__file__).parents[5]
FAKE = Path(__file__).parents[4] / "support/fake_evaluator.py"
SPACE = ROOT / "docs/examples/evaluator/scale_rows.yaml"
WORKLOAD = Workload.of({"T": 4, "K": 64})
LAUNCH = Launch("scale_rows", (4, 1, 1), (64, 1, 1))
CONFIG = Config.of({"items": 8})

Open = Callable[..., EvaluatorDevice]


def command(*words: object) -> str:
    return shlex.join([sys.executable, str(FAKE), *map(str, words)])


def program(source: str, config: Config | None = CONFIG) -> Program:
    return Program(source, WORKLOAD, (LAUNCH,), source.encode(), config=config)


@pytest.fixture(scope="module")
def spec() -> KernelSpec:
    return load_definition(SPACE).spec


@pytest.fixture
def opened(spec: KernelSpec) -> Iterator[Open]:
    devices: list[EvaluatorDevice] = []

    def open_(*words: object, **operators: str) -> EvaluatorDevice:
        devices.append(EvaluatorDevice(command(*words), spec, operators))
        return devices[-1]

    yield open_
    for one in devices:
        one.close()


class TestContract(DeviceContract):
    @pytest.fixture
    def device(self, opened: Open) -> Device:
        return opened("verifies", 'describe={"architecture": "sm_90a"}')

    @pytest.fixture
    def working(self) -> list[Program]:
        return [program("us=20", None), program("us=10"), program("us=12.5")]

    @pytest.fixture
    def failing(self) -> Program:
        return program("status=incorrect")


def requests(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def test_a_request_says_all_that_is_needed_to_build_run_and_verify(
    opened: Open, spec: KernelSpec, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    device = opened(f"log={log}", "verifies", MODE="fast")
    device.run(program("us=9"), incumbent_us=12.0)
    device.run(program("us=9"), full_verification=True)
    device.run(program("us=9", None), full_verification=True)
    device.verify(program("us=9"))
    described, search, *others = requests(log)
    assert described["purpose"] == "describe"
    assert described["programs"] == []
    purposes = [one["purpose"] for one in (search, *others)]
    assert purposes == ["search", "finals", "baseline", "verify"]
    assert search["kernel"] == "scale_rows"
    assert search["language"] == "CUDA"
    assert search["workload"] == {"T": 4, "K": 64}
    assert search["operators"] == {"MODE": "fast"}
    assert search["options"] == ["-DMODE=fast"]
    assert search["incumbent_us"] == 12.0
    assert search["reference"] == str(spec.reference)
    assert search["seed"] != others[0]["seed"]
    (asked,) = search["programs"]
    assert asked["source"] == "us=9"
    assert asked["config"] == {"items": 8}
    assert others[1]["programs"][0]["config"] is None
    (launch,) = asked["launches"]
    assert (launch["grid"], launch["block"]) == ([4, 1, 1], [64, 1, 1])
    assert launch["arguments"] == ["y", "x", "s", "T", "K"]
    arguments = {one["name"]: one for one in asked["arguments"]}
    assert (arguments["x"]["shape"], arguments["x"]["role"]) == ([4, 64], "input")
    assert arguments["y"]["tolerance"] == {"relative": 1e-5, "absolute": 0.0}
    assert arguments["K"]["value"] == 64


def test_hardware_is_limited_by_what_it_says_alone(opened: Open) -> None:
    told = {"multiprocessors": 20, "limits": {"threads_per_block": 512}}
    told |= {"environment": {"driver": "6.2", "recorded": "true"}}
    info = opened(f"describe={json.dumps(told)}").info
    assert (info.name, info.architecture, info.multiprocessors) == ("fake", "other", 20)
    assert not info.verifies
    assert info.limits.threads_per_block == 512
    assert info.limits.shared_bytes_per_block > 2**30
    assert occupancy(info.limits, Resources(32), LAUNCH) is None
    assert info.environment == {
        "evaluator": info.evaluator,
        "evaluator driver": "6.2",
        "evaluator recorded": "true",
    }


def test_a_known_gpu_has_its_own_limits_unless_others_are_stated() -> None:
    def info(**told: object) -> DeviceInfo:
        return Described.model_validate(
            {"version": 1, "name": "far", "streaming_gbps": 900, **told}
        ).info("./measure.sh")

    assert info(architecture="sm_90").limits == limits_for((9, 0))
    assert info(architecture="sm_90", limits={}).limits != limits_for((9, 0))
    assert info(architecture="gfx942:xnack-").limits == amd_limits("gfx942")
    stated = info(architecture="gfx942", limits={"threads_per_block": 256}).limits
    assert (stated.threads_per_block, stated.threads_per_warp) == (256, 64)
    narrow = info(architecture="gfx942", limits={"threads_per_warp": 32}).limits
    assert narrow.threads_per_warp == 32
    assert info(architecture="gfx803").limits.threads_per_warp == 32


def test_what_was_not_verified_is_not_called_correct_by_a_verification(
    opened: Open, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    device = opened(f"log={log}")
    outcome = device.run(program("us=9"))
    assert outcome.status is Status.CORRECT
    assert outcome.correctness is None
    unverified = device.verify(program("us=9"))
    assert unverified.status is Status.NOT_RECORDED
    assert "does not verify" in unverified.reason
    assert len(requests(log)) == 2, "it is not asked for what it cannot do"
    forgetful = opened("verifies", 'answer={"verified": false}')
    forgotten = forgetful.verify(program("us=9"))
    assert forgotten.status is Status.LAUNCH
    assert "`verified` is not true" in forgotten.reason
    assert forgetful.run(program("us=9")).correctness is None
    assert opened("verifies").verify(program("us=9")).status is Status.CORRECT


@pytest.mark.parametrize("status", ["incorrect", "compile", "launch", "timeout", "resource_limit"])
def test_a_failure_has_its_status_and_reason(opened: Open, status: str) -> None:
    outcome = opened().run(program(f"status={status}"))
    assert outcome.status is Status(status)
    assert outcome.reason == f"it is said to be {status}"


def test_what_a_program_does_behind_its_answer_is_waited_for(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.extensions.backends.program.command.GRACE_S", 0.1)
    assert opened("lingers=0.5").run(program("us=9")).status is Status.CORRECT
    late = opened("lingers=60", 'describe={"timeout_s": 1.0}').run(program("us=9"))
    assert late.status is Status.TIMEOUT


def test_a_reason_is_text_that_a_terminal_only_shows() -> None:
    told = "\x1b[1mk.cu:3:\x1b[0m \x1b]0;title\x07error\r\n\tmore\u202e" + "x" * 100_000
    answer = Answer.model_validate({"status": "compile", "reason": told})
    assert answer.reason.startswith("k.cu:3: error\n more" + "x" * 100)
    assert "more characters" in answer.reason[-40:]
    assert not {"\x1b", "\r", "\u202e"} & set(answer.reason)


def test_resources_and_an_early_stop_are_passed_on(opened: Open) -> None:
    told = {"resources": {"registers": 40, "spill_store_bytes": 8}, "stopped_early": True}
    outcome = opened(f"answer={json.dumps(told)}").run(program("us=9"))
    assert outcome.resources == Resources(40, 8)
    assert outcome.measurement is not None
    assert outcome.measurement.stopped_early


def test_a_comparison_is_the_evaluators_where_it_can(opened: Open, tmp_path: Path) -> None:
    log = tmp_path / "log"
    programs = [program("us=20", None), program("us=10"), program("us=5")]
    rounds = opened("compares", f"log={log}").compare(programs, rounds=7)
    assert rounds.paired
    assert rounds.times_us == ((20.0, 10.0, 5.0),) * 7
    assert [one["purpose"] for one in requests(log)] == ["describe", "compare"]


def test_elsewhere_each_request_gives_one_time_and_nothing_is_paired(
    opened: Open, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    programs = [program("us=20", None), program("us=10")]
    device = opened(f"log={log}", 'describe={"parallel": 2}')
    rounds = device.compare(programs, rounds=40)
    assert not rounds.paired
    assert rounds.times_us == ((20.0, 10.0),) * ALTERNATIONS
    asked = requests(log)[1:]
    assert len(asked) == 2 * ALTERNATIONS


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "names no program"),
        ("./measure\n", "cannot be printed"),
        ("./measure 'sh", "cannot be read: no closing quotation"),
        ("./no-such-program", "cannot be started: No such file"),
        (str(SPACE), "cannot be started: Permission denied"),
    ],
)
def test_a_program_that_cannot_be_started_is_one_error_with_the_remedy(
    spec: KernelSpec, text: str, told: str
) -> None:
    with pytest.raises(DeviceError, match=told) as caught:
        open_device(f"command:{text}", spec, {})
    assert caught.value.exit_code == 2
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("nonsense", "answered what cannot be read .*: srun: job 17 queued"),
        ("dies", "ended with exit code 1; it wrote last: the queue is closed"),
        ("silent", "answered what cannot be read .*: nothing"),
        ("hangs", "gave no answer within 0.5 s"),
        ("endless", "wrote over 4 MiB"),
        ('describe={"streaming_gbps": -1}', "streaming_gbps: Input should be greater than 0"),
        ('describe={"colour": "red"}', "colour: Extra inputs are not permitted"),
        ('describe={"name": "a\\u0007"}', "name: Value error, .* cannot be printed"),
        ('describe={"version": 2}', "version: Input should be 1"),
    ],
)
def test_without_a_description_nothing_begins(
    opened: Open, monkeypatch: pytest.MonkeyPatch, mode: str, told: str
) -> None:
    if mode == "hangs":
        monkeypatch.setattr(evaluator_device, "DESCRIBE_TIMEOUT_S", 0.5)
    with pytest.raises(DeviceError, match=told) as caught:
        opened("early", mode)
    assert "docs/evaluators.md" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("nonsense", "answered what cannot be read"),
        ("dies", "the queue is closed"),
        ('answer={"times_us": []}', "left something out: `times_us` is empty"),
        ('answer={"times_us": [-1]}', r"times_us\.0: Input should be greater than 0"),
        ('answer={"times_us": [1e-320]}', r"times_us\.0: .* cannot be the time of a call"),
        ('answer={"times_us": [1, 1e300]}', r"times_us\.1: .* cannot be the time of a call"),
        ('answer={"status": "launch"}', "the status launch needs a `reason`"),
    ],
)
def test_a_fault_is_one_status_and_some_in_a_row_end_the_run(
    opened: Open, mode: str, told: str
) -> None:
    device = opened(mode)
    for _ in range(MOST_FAULTS - 1):
        outcome = device.run(program("us=9"))
        assert outcome.status is Status.LAUNCH
        assert outcome.measurement is None
    with pytest.raises(DeviceError, match=told) as caught:
        device.run(program("us=9"))
    assert f"failed {MOST_FAULTS} times in a row" in caught.value.message
    assert "--resume" in str(caught.value.remedy)


def test_an_answer_in_between_begins_the_count_anew(opened: Open) -> None:
    device = opened()
    broken = replace(program("us=9"), cubin=b"status=unheard_of")
    for _ in range(3):
        for _ in range(MOST_FAULTS - 1):
            assert device.run(broken).status is Status.LAUNCH
        assert device.run(program("us=9")).status is Status.CORRECT


def test_one_that_hangs_is_ended_with_all_that_it_has_started(opened: Open, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    device = opened("hangs", f"pids={pids}", 'describe={"timeout_s": 4}')
    outcome = device.run(program("us=9"))
    assert outcome.status is Status.TIMEOUT
    assert "no answer within 4 s" in outcome.reason
    for pid in map(int, pids.read_text(encoding="utf-8").split()):
        wait_until(lambda pid=pid: not is_running(pid), f"the end of process {pid}")


def test_what_it_leaves_behind_is_not_waited_for(opened: Open) -> None:
    device = opened("leaves", 'describe={"timeout_s": 15}')
    assert device.run(program("us=9")).status is Status.CORRECT


def test_a_kernel_with_tensor_maps_is_refused(spec: KernelSpec) -> None:
    mapped = tuple(replace(one, maps=(object(),)) for one in spec.launch)
    with pytest.raises(DeviceError, match="told of no tensor maps"):
        EvaluatorDevice(command(), replace(spec, launch=mapped), {})


def test_closing_ends_what_is_under_way(opened: Open, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    device = opened("hangs", f"pids={pids}")
    outcomes: list[object] = []
    thread = threading.Thread(target=lambda: outcomes.append(device.run(program("us=9"))))
    thread.start()
    wait_until(lambda: pids.exists() and pids.stat().st_size, "the request")
    device.close()
    thread.join(30)
    assert not thread.is_alive()
    assert len(outcomes) == 1


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_the_published_schema_is_the_one_that_is_kept() -> None:
    text = (ROOT / "docs/evaluators.schema.json").read_text(encoding="utf-8")
    assert json.loads(text) == json.loads(json.dumps(json_schema()))


def test_an_answer_to_a_comparison_has_a_time_for_each_program() -> None:
    answer = Answer.model_validate({"status": "correct", "rounds_us": [[1, 2], [1]]})
    assert answer.lacks("compare", 2, verifies=True) == "a row of `rounds_us` has 1 times, not 2"
    few = Answer.model_validate({"status": "correct", "rounds_us": [[1, 2]]})
    said = few.lacks("compare", 2, verifies=True, rounds=40)
    assert said == "`rounds_us` has 1 rows, and `rounds` is 40"
    assert (
        answer.lacks("search", 1, verifies=True) == "`times_us` is empty, and the status is correct"
    )
    assert answer.lacks("verify", 1, verifies=False) == ""
    assert "`verified` is not true" in answer.lacks("verify", 1, verifies=True)
