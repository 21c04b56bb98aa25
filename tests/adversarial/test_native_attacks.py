"""Native code that reaches for what is not its own: it fails alone, and nobody beside it does."""

from __future__ import annotations

import re
import secrets
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from adversaries import ONE_BLOCK, T_1000
from on_trial import CONFIG, Build, OneDevice, check_passes, honest
from operators import SCALE

from tuner.compiler.base import CompileRequest
from tuner.device.base import Program
from tuner.device.layout import InputChange, Patch, lay_out
from tuner.device.verify.shared_memory import SharedMemory
from tuner.extensions.cpu.compiler import HostCompiler
from tuner.extensions.cpu.device import HostDevice
from tuner.extensions.cpu.worker import HostWorker
from tuner.model.errors import DeviceError
from tuner.model.trial import Status

FOLDER = Path(__file__).parent
NATIVE = FOLDER / "native"
LIBC = (FOLDER.parent / "unit/extensions/cpu/data/libc.h").read_text(encoding="utf-8")
# What is said of each; of those that are right that what they reach for is not there.
RIGHT = "right"
ATTACKS = {
    "answers while it is loaded": "no answer",
    "defines functions of the system": "no answer in time|had not ended",
    "grows its output in place": RIGHT,
    "grows its output over its input": "illegal address",
    "maps an input of its own": "expected",
    "maps every file that is open": RIGHT,
    "maps pages over what is closed": RIGHT,
    "opens its input for writing": RIGHT,
    "reads the memory of its server": RIGHT,
    "writes to its own memory as a file": "system call that kernels may not make",
}


def built(build: Build, name: str, before: str = "") -> Program:
    source = (NATIVE / f"{name.replace(' ', '_')}.cu").read_text(encoding="utf-8")
    made = build(f"{LIBC}{before}\n{source}", T_1000, ONE_BLOCK, ())
    return Program(made.text_key, T_1000, ONE_BLOCK, made.cubin, made.lowered, config=CONFIG)


@pytest.fixture
def device(devices: OneDevice) -> HostDevice:
    device = devices.of(SCALE)
    assert isinstance(device, HostDevice)
    if not {"files", "system calls"} <= {*device.info.environment["sandbox"].split(", ")}:
        pytest.skip("this system has no Landlock, or no filter of system calls")
    return device


@pytest.mark.parametrize("name", ATTACKS)
def test_what_is_not_its_own_a_kernel_does_not_reach(
    device: HostDevice, build: Build, name: str
) -> None:
    program, plain = built(build, name), honest(build, SCALE)
    outcome = device.run(program, full_verification=True)
    assert (outcome.status is Status.CORRECT) is (ATTACKS[name] == RIGHT), outcome.reason
    assert re.search(ATTACKS[name], outcome.reason or RIGHT), outcome.reason
    check_passes(device, plain)
    try:
        assert device.compare([plain, program], rounds=30).faults[0] == ""
    except DeviceError as error:
        assert re.search(ATTACKS[name], error.message)
    assert device.compare([plain], rounds=3).faults == ("",)


def test_every_attack_of_the_folder_is_tried() -> None:
    named = {path.stem.replace("_", " ") for path in NATIVE.glob("*.cu")}
    assert named == {*ATTACKS, "answers before its work"}


@pytest.mark.parametrize("work_us", [15, 3000])
def test_an_answer_in_advance_gains_nothing(device: HostDevice, build: Build, work_us: int) -> None:
    """It has the command's token. What it has yet to do it is stopped at, or it counts."""
    program = built(build, "answers before its work", f"#define WORK_NS {work_us}000l")
    outcome = device.run(program, full_verification=True)
    if outcome.status is Status.CORRECT:
        assert outcome.measurement is not None
        assert min(outcome.measurement.times_us) > work_us / 2
    else:
        assert re.search("expected|differs", outcome.reason), outcome.reason


def test_no_process_that_runs_kernels_has_what_the_judge_chooses(build: Build) -> None:
    marks = [secrets.token_bytes(16) for _ in range(2)]
    layout = lay_out(SCALE.spec, T_1000.values, by_pages=True)
    start = layout.slot("x").offset
    patch = Patch((InputChange((*range(start, start + 16),), *marks),))
    memory, worker = SharedMemory(), HostWorker(5.0)
    worker.attach(memory.open("key", layout))
    memory.data[...] = np.frombuffer(secrets.token_bytes(layout.total_bytes), np.uint8)
    memory.data[start : start + 16] = np.frombuffer(marks[0], np.uint8)
    worker.memory.renew(patch)
    program = honest(build, SCALE)
    for variant in (1, 0):
        worker.run(program, 0, 0x41, variant)
    (child,) = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
    kept = bytes(memory.data[layout.total_bytes - 32 :])  # a guard
    for pid in (worker.pid, int(child)):
        found = _memory_of(pid)
        assert b"AttachRequest" in found
        wanted = [marks[1], marks[1].hex().encode(), kept]
        assert not [one for one in wanted if one in found]
        assert (marks[0] in found) is (pid != worker.pid), "the child reads its inputs"
    worker.kill()
    memory.close()


def _memory_of(pid: int) -> bytes:
    pieces = []
    with Path(f"/proc/{pid}/mem").open("rb") as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if line.split()[1].startswith("r") and "[v" not in line:
                start, end = (int(part, 16) for part in line.split()[0].split("-"))
                memory.seek(start)
                pieces.append(memory.read(end - start))
    return b"".join(pieces)


# What would be called, or read, in the place of the runtime's.
NAMES = {
    "its function": 'extern "C" int cuda_on_host_run(const void*, const void*) { return 0; }',
    "by pasting": "#define JOIN(a, b) a##b\n"
    'extern "C" __attribute__((weak)) int JOIN(cuda_on, _host_run)(void*, void*) { return 0; }',
    "a specialization": "template <> struct cuda_on_host::Shared<int, 4> { int value; };",
    "its variables": 'extern "C" const void* _ZN12cuda_on_host6activeE;',
    "an alias": 'extern "C" int f() { return 0; }\n#pragma weak cuda_on_host_run = f',
    "another name": "#pragma redefine_extname evil cuda_on_host_run\n"
    'extern "C" __attribute__((visibility("default"))) int evil() { return 0; }',
    "a version": 'extern "C" __attribute__((symver("cuda_on" "_host_run@@V"), '
    'visibility("default"))) int evil() { return 0; }',
    "a claim to be the system": '# 1 "claimed.h" 3\nnamespace cuda_on_host { int x; }',
}


@pytest.mark.parametrize("name", NAMES)
def test_no_source_takes_a_name_of_the_runtimes(name: str) -> None:
    source = f"{NAMES[name]}\n{SCALE.plain}"
    with closing(HostCompiler(1)) as compiler:
        result = compiler.submit(CompileRequest(source, ("run",), "sm_90a")).result()
    assert "the runtime's own name" in result.error or (name == "a version" and result.error)


def test_macros_rename_nothing_of_what_is_called(build: Build, device: HostDevice) -> None:
    names = (
        "harness",
        "Kernel",
        "Launch",
        "Value",
        "Places",
        "kernel",
        "thread",
        "sizes",
        "launch",
    )
    macros = "".join(f"#define {one} taken\n" for one in names)
    weak = 'extern "C" __attribute__((weak, visibility("default"))) int tune_0() { return 0; }\n'
    made = build(f"{macros}{weak}{SCALE.plain}", T_1000, ONE_BLOCK, ())
    check_passes(device, made)
    again = build(f"{macros}{weak}{SCALE.plain}// another", T_1000, ONE_BLOCK, ())
    assert made.cubin == again.cubin, "nothing that is drawn for a compile is left in it"
