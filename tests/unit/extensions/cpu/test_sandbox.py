"""What hostile native code may try on the `host` device, and that it costs its own outcome only."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tuner.compiler.base import CompileRequest
from tuner.device.base import Outcome, Program
from tuner.device.layout import Arena, Layout, lay_out
from tuner.device.verify.shared_memory import SharedMemory, available_bytes
from tuner.extensions.cpu.child import ANSWER
from tuner.extensions.cpu.compiler import HostCompiler
from tuner.extensions.cpu.confinement import MACHINES
from tuner.extensions.cpu.device import HostDevice
from tuner.extensions.cpu.worker import HostWorker, elf_fault
from tuner.model.errors import DeviceError, WorkerError
from tuner.model.kernel import KernelSpec, Launch, Workload
from tuner.model.trial import Status
from tuner.testing.devices import DeviceContract

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

MakeSpec = Callable[..., KernelSpec]
DATA = Path(__file__).parent / "data"
WORKLOAD = Workload.of({"T": 300})
LAUNCH = Launch("run", (1, 1, 1), (32, 1, 1))
ARGUMENTS = (("y", "float32", ("T",), "output"), ("x", "float32", ("T",), "input"))
RIGHT = "for (int i = threadIdx.x; i < 300; i += 32) y[i] = 2 * x[i];"
# What the kernel does before its work, once; and a kernel that is right unless `possible` holds.
FIRST = "if (threadIdx.x == 0) {{ {} }}"
UNLESS = "const bool possible = {}; if (possible) return;"
LIBC = (DATA / "libc.h").read_text(encoding="utf-8")
ALWAYS = {"memory", "cpu time", "file size"}
FILTERED = {"processes", "network", "system calls"}


def kernel(before: str, work: str = RIGHT, outside: str = "") -> str:
    body = f"{before}\n{work}"
    return f'{LIBC}{outside}\nextern "C" __global__ void run(float* y, const float* x) {{ {body} }}'


class Bench:
    """One device, whose outcomes for sources are asked for."""

    def __init__(self, compiler: HostCompiler, device: HostDevice) -> None:
        self._compiler, self.device = compiler, device

    def program(self, source: str) -> Program:
        result = self._compiler.submit(CompileRequest(source, ("run",), "sm_90a")).result()
        assert result.ok, result.error
        return Program(source, WORKLOAD, (LAUNCH,), result.cubin, result.lowered)

    def run(self, source: str) -> Outcome:
        return self.device.run(self.program(source))


@pytest.fixture(scope="module")
def opened() -> Iterator[list[HostDevice]]:
    """The one device of these tests, as soon as it is open."""
    devices: list[HostDevice] = []
    yield devices
    for device in devices:
        device.close()


@pytest.fixture
def device(make_spec: MakeSpec, opened: list[HostDevice]) -> HostDevice:
    """A device that has been through the tests before, and must work all the same."""
    if not opened:
        opened.append(HostDevice(make_spec(*ARGUMENTS), {}, run_timeout_s=0.5))
    return opened[0]


@pytest.fixture
def bench(compiler: HostCompiler, device: HostDevice) -> Iterator[Bench]:
    """A device that must work, with the same server, when the test has done its worst."""
    bench = Bench(compiler, device)
    server = server_of(device)
    yield bench
    assert bench.run(kernel("")).status is Status.CORRECT
    assert server_of(device) == server
    assert not strays_of(server)


def server_of(device: HostDevice) -> int:
    worker = device._runner._worker  # type: ignore[attr-defined]
    assert isinstance(worker, HostWorker)
    return worker.pid


def test_a_verifier_that_has_ended_is_blamed() -> None:
    worker = object.__new__(HostWorker)
    worker._loaded, worker._memory = {}, None
    with pytest.raises(WorkerError, match="the process that verifies results ended"):
        worker.attach(Arena("key", Layout((), (), 0), None, "/proc/0/fd/3"))


class TestContract(DeviceContract):
    @pytest.fixture
    def working(self, bench: Bench) -> list[Program]:
        doubled = RIGHT.replace("2 * x[i]", "x[i] + x[i]")
        return [bench.program(kernel("")), bench.program(kernel("", doubled))]

    @pytest.fixture
    def failing(self, bench: Bench) -> Program:
        return bench.program(kernel("__builtin_trap();"))


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def strays_of(server: int) -> list[int]:
    """Descendants beyond the one child that holds the last program."""
    children = children_of(server)
    return children[1:] + [pid for child in children for pid in children_of(child)]


def test_every_limit_holds_where_the_system_has_it_and_is_on_record(device: HostDevice) -> None:
    recorded = device.info.environment["sandbox"].split(", ")
    assert device.info.name.startswith("host CPU (")
    assert set(recorded) <= ALWAYS | FILTERED | {"privileges", "files"}
    assert set(recorded) >= ALWAYS
    if platform.machine() in MACHINES:
        assert set(recorded) >= FILTERED


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("exit(0);", r"ended its process \(exit code 0\) without an answer"),
        ("_exit(0);", r"ended its process \(exit code 0\)"),
        ("exit(3);", r"ended its process \(exit code 3\)"),
        ("abort();", "ended by SIGABRT"),
        ("kill(getpid(), SIGKILL);", r"was killed \(SIGKILL\)"),
        ("kill(getpid(), SIGTERM);", "ended by SIGTERM"),
        ("raise(SIGABRT);", "ended by SIGABRT"),
        ("__builtin_trap();", "ended by SIG(ILL|TRAP)"),
        ("for (int i = 0; i < 64; ++i) close(i);", "closed the channel|ended its process"),
        (
            'for (int i = 3; i < 64; ++i) write(i, "rubbish", 7);',
            "wrote to the channel of its process",
        ),
        ('for (int i = 3; i < 64; ++i) write(i, "", 0);', "without an answer|no answer"),
        ("free(reinterpret_cast<void*>(x[0] < 9e9f ? 16 : 0));", "illegal address|SIG(SEGV|ABRT)"),
    ],
)
def test_a_process_that_ends_or_lies_about_it_is_explained(
    bench: Bench, before: str, reason: str
) -> None:
    outcome = bench.run(kernel(FIRST.format(before)))
    assert outcome.status is Status.LAUNCH
    assert re.search(reason, outcome.reason), outcome.reason


def test_a_forged_answer_is_none_for_it_lacks_the_token(bench: Bench) -> None:
    forged = f"""
      static char answer[{ANSWER.size}];
      for (int i = 3; i < 64; ++i) write(i, answer, sizeof answer);
      _exit(0);"""
    outcome = bench.run(kernel(FIRST.format(forged)))
    assert outcome.status is Status.LAUNCH
    assert "there is no answer" in outcome.reason


@pytest.mark.parametrize(
    "before",
    [
        "socket(AF_INET, SOCK_STREAM, 0);",
        "connect(3, nullptr, 0);",
        "int pair[2]; socketpair(AF_UNIX, SOCK_STREAM, 0, pair);",
        "fork();",
        "vfork();",
        "syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);",
        'system("true");',
        'char* none[] = {nullptr}; execve("/bin/true", none, none);',
        "pthread_t thread; pthread_create(&thread, 0, [](void* p) { return p; }, 0);",
        "kill(getppid(), SIGKILL);",
        "kill(0, SIGKILL);",
        "kill(-1, SIGKILL);",
        "syscall(SYS_ptrace, 16, getppid(), 0, 0);",
        "char c; iovec to{&c, 1}; syscall(SYS_process_vm_readv, getppid(), &to, 1, &to, 1, 0);",
        'open("created", O_CREAT | O_WRONLY, 0600);',
        'open("/dev/null", O_RDWR);',
        'unlink("/tmp/nothing");',
        "ftruncate(3, 0);",
    ],
)
@pytest.mark.skipif(platform.machine() not in MACHINES, reason="no filter for this machine")
def test_a_system_call_that_no_kernel_needs_ends_it(bench: Bench, before: str) -> None:
    outcome = bench.run(kernel(FIRST.format(before), outside="#include <sys/uio.h>"))
    assert outcome.status is Status.LAUNCH
    assert "made a system call that kernels may not make" in outcome.reason


@pytest.mark.parametrize(
    "possible",
    [
        pytest.param("environ && environ[0]", id="environment"),
        pytest.param("malloc(5ll << 30) != nullptr", id="memory"),
        pytest.param("prctl(PR_SET_PDEATHSIG, 0) == 0", id="outliving its server"),
        pytest.param(
            "[] { rlimit most{RLIM_INFINITY, RLIM_INFINITY};"
            " return setrlimit(RLIMIT_AS, &most) == 0; }()",
            id="limits",
        ),
        pytest.param('open("/proc/self/mem", O_RDONLY) >= 0', id="own memory as a file"),
        pytest.param('open("/etc/passwd", O_RDONLY) >= 0', id="a file of the system"),
        pytest.param(
            '[] { char name[64]; snprintf(name, 64, "/proc/%d/environ", getppid());'
            " return open(name, O_RDONLY) >= 0; }()",
            id="environment of its server",
        ),
        pytest.param("syscall(SYS_memfd_create, 0, 0) >= 0", id="a file in memory"),
        pytest.param("syscall(SYS_setpriority, 0, 0, 0) == 0", id="priority"),
    ],
)
def test_what_a_kernel_may_not_have_it_does_not_get(
    bench: Bench, device: HostDevice, possible: str
) -> None:
    if "files" not in device.info.environment["sandbox"]:
        pytest.skip("this system has no Landlock")
    outcome = bench.run(kernel(UNLESS.format(possible)))
    assert outcome.status is Status.CORRECT, outcome.reason


def test_a_file_of_the_user_stays_unread_and_unwritten(bench: Bench, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    outcome = bench.run(kernel(UNLESS.format(f'open("{secret}", O_RDONLY) >= 0')))
    assert outcome.status is Status.CORRECT
    attempt = f'open("{tmp_path}/made", O_CREAT | O_WRONLY, 0600);'
    assert bench.run(kernel(FIRST.format(attempt))).status is Status.LAUNCH
    assert [path.name for path in tmp_path.iterdir() if path.name == "made"] == []


@pytest.mark.parametrize("act", ["_exit(0);", "for (;;) {}", "abort();", "fork();"])
def test_a_constructor_is_confined_as_the_kernel_is(bench: Bench, act: str) -> None:
    outside = f"static const struct Early {{ Early() {{ {act} }} }} early;"
    outcome = bench.run(kernel("", outside=outside))
    assert outcome.status is (Status.TIMEOUT if act.startswith("for (") else Status.LAUNCH)


@pytest.mark.parametrize(
    "before",
    [
        "for (;;) {}",
        "sigset_t all; sigfillset(&all); sigprocmask(SIG_BLOCK, &all, 0); for (;;) {}",
        "signal(SIGALRM, SIG_IGN); for (;;) {}",
        "for (;;) sleep(1000);",
        "kill(getpid(), SIGSTOP);",
    ],
)
def test_a_kernel_that_never_ends_is_ended(bench: Bench, before: str) -> None:
    outcome = bench.run(kernel(FIRST.format(before)))
    assert outcome.status is Status.TIMEOUT, outcome.reason


def test_a_flood_of_words_is_neither_kept_nor_hung_on(bench: Bench) -> None:
    flood = 'for (int i = 0; i < 20000; ++i) fputs("\\033[2Jflood\\n", stderr); abort();'
    outcome = bench.run(kernel(FIRST.format(flood)))
    assert outcome.status is Status.LAUNCH
    assert outcome.reason.endswith("it wrote: [2Jflood")


@pytest.mark.parametrize(
    "before",
    [
        "static int runs; if (threadIdx.x == 0) ++runs; if (runs > 1) return;",
        "static float kept[300]; static bool full;"
        " if (full) { for (int i = threadIdx.x; i < 300; i += 32) y[i] = kept[i]; return; }"
        " for (int i = threadIdx.x; i < 300; i += 32) kept[i] = 2 * x[i];"
        " if (threadIdx.x == 31) full = true;",
    ],
    ids=["only the first run", "the first run's results"],
)
def test_state_that_a_kernel_keeps_between_its_runs_is_its_undoing(
    bench: Bench, before: str
) -> None:
    outcome = bench.run(kernel(before))
    assert outcome.status is Status.INCORRECT
    assert "after timing" not in outcome.reason


def test_work_that_ends_when_timing_begins_is_noticed(bench: Bench) -> None:
    before = "static int runs; if (threadIdx.x == 0) ++runs; if (runs > 2 * 3) return;"
    outcome = bench.run(kernel(before))
    assert outcome.status is Status.INCORRECT
    assert "after timing" in outcome.reason


def test_no_program_sees_what_another_left_in_its_process(bench: Bench) -> None:
    for step in range(3):
        before = f"static int runs; const int step = {step};"
        work = f"if (threadIdx.x == 0 && step == 1) ++runs; {RIGHT}"
        assert bench.run(kernel(before, work)).status is Status.CORRECT
        assert len(children_of(server_of(bench.device))) == 1


def test_times_are_the_servers_own(bench: Bench) -> None:
    program = bench.program(kernel(FIRST.format("timespec a{0, 5000000}; nanosleep(&a, 0);")))
    outcome = bench.device.run(program)
    assert outcome.measurement is not None
    assert 5e3 <= min(outcome.measurement.times_us) < 50e3
    rounds = bench.device.compare([program, bench.program(kernel(""))], rounds=5)
    slow_us, fast_us = zip(*rounds.times_us, strict=True)
    assert min(slow_us) >= 5e3
    assert min(fast_us) < 2e3  # a busy machine may hold up a single round


class TestLibraries:
    def load(self, device: HostDevice, library: bytes, function: str = "entry") -> Outcome:
        return device.run(Program("key", WORKLOAD, (LAUNCH,), library, {"run": function}))

    def test_one_that_cannot_be_loaded_costs_one_outcome(self, bench: Bench) -> None:
        library = bench.program(kernel("")).cubin
        assert elf_fault(library) == ""
        assert "does not begin as an ELF file" in elf_fault(bytes(len(library)))
        spoiled = library[:64] + bytes(len(library) - 4096 - 64) + library[-4096:]
        assert self.load(bench.device, spoiled).status is Status.LAUNCH
        absent = self.load(bench.device, library, "absent")
        assert absent.status is Status.LAUNCH
        assert "undefined symbol: absent" in absent.reason

    def test_one_for_another_machine_is_named(self, bench: Bench) -> None:
        library = bytearray(bench.program(kernel("")).cubin)
        library[18:20] = struct.pack("<H", 190)
        outcome = self.load(bench.device, bytes(library))
        assert outcome.status is Status.LAUNCH
        assert outcome.reason.endswith(f"is for CUDA, and this machine is {platform.machine()}")

    @pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.999])
    def test_one_that_is_cut_short_is_noticed(self, bench: Bench, share: float) -> None:
        library = bench.program(kernel("")).cubin
        outcome = self.load(bench.device, library[: int(len(library) * share)])
        assert outcome.status is Status.LAUNCH
        assert re.search("is no library|is cut short", outcome.reason)


def test_a_broken_sandbox_is_on_record_and_kernels_run_all_the_same(
    compiler: HostCompiler, make_spec: MakeSpec, tmp_path: Path
) -> None:
    """A system that refuses Landlock, namespaces and filters, as some containers do."""
    library = tmp_path / "library"
    program = Bench(compiler, None).program(kernel(""))  # type: ignore[arg-type]
    library.write_bytes(program.cubin)
    script = tmp_path / "refused.py"
    script.write_text(REFUSED)
    function = program.lowered["run"]
    answer = subprocess.run(
        [sys.executable, str(script), str(library), function],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    limits, ran = json.loads(answer.stdout)
    assert set(limits) == {*ALWAYS, "privileges"}
    assert ran == 0


class TestFirstChild:
    """What the server learns from a child that has no program yet."""

    def start(self, folder: Path, times: int, end: str) -> HostWorker:
        library = folder / "ended.so"
        starts = json.dumps(str(folder / "starts"))
        macros = [f"-DSTARTS={starts}", f"-DTIMES={times}", f"-DEND={end}"]
        command = [
            "g++",
            "-shared",
            "-fPIC",
            *macros,
            "-o",
            str(library),
            str(DATA / "ended_at_first.cc"),
        ]
        subprocess.run(command, check=True, timeout=60)
        return HostWorker(1.0, {"LD_PRELOAD": str(library)})

    def test_a_kill_from_outside_costs_nothing(self, tmp_path: Path) -> None:
        worker = self.start(tmp_path, 2, "raise(SIGKILL)")
        assert set(worker.limits) >= ALWAYS
        worker.kill()

    @pytest.mark.parametrize(
        ("end", "reason", "starts"),
        [("raise(SIGKILL)", r"was killed \(SIGKILL\)", 3), ("_exit(7)", r"\(exit code 7\)", 1)],
    )
    def test_one_that_cannot_begin_is_an_error_and_no_limit(
        self, tmp_path: Path, end: str, reason: str, starts: int
    ) -> None:
        with pytest.raises(WorkerError, match=f"no process can be started .*{reason}"):
            self.start(tmp_path, 99, end)
        assert len((tmp_path / "starts").read_text()) == starts


# Filters first what it is about to ask of the system, then starts the worker.
REFUSED = """
import ctypes, errno, json, os, platform, struct, sys
import numpy as np
from tuner.extensions.cpu import confinement
from tuner.device.base import Program
from tuner.device.verify.shared_memory import SharedMemory
from tuner.extensions.cpu.worker import HostWorker
from tuner.device.layout import UNCHANGED, Layout, Slot
from tuner.model.kernel import Launch, Workload

UNSHARE, SECCOMP_CALL, PRCTL = {"x86_64": (272, 317, 157), "aarch64": (97, 277, 167)}[
    platform.machine()
]
refuse = 0x00050000 | errno.ENOSYS
code = [(0x20, 0, 0, 0)]
for number in (444, 445, 446, UNSHARE, SECCOMP_CALL):
    code += [(0x15, 0, 1, number), (0x06, 0, 0, refuse)]
code += [(0x15, 0, 3, PRCTL), (0x20, 0, 0, 16), (0x15, 0, 1, 22), (0x06, 0, 0, refuse)]
code += [(0x06, 0, 0, 0x7FFF0000)]
content = b"".join(struct.pack("=HBBI", *one) for one in code)
buffer = ctypes.create_string_buffer(content, len(content))
libc = ctypes.CDLL(None)
libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
assert libc.prctl(38, 1, 0, 0, 0) == 0
header = confinement.FilterProgram(len(code), ctypes.addressof(buffer))
assert libc.prctl(22, 2, ctypes.addressof(header), 0, 0) == 0

worker = HostWorker(1.0)
slots = [Slot(n, "float32", (300,), r, o, 1200) for n, r, o in
         (("y", "output", 4096), ("x", "input", 12288))]
memory = SharedMemory()
worker.attach(memory.open("key", Layout(tuple(slots), ("y", "x"), 20480)))
memory.data[12288:13488].view(np.float32)[:] = 3
launch = Launch("run", (1, 1, 1), (32, 1, 1))
with open(sys.argv[1], "rb") as file:
    program = Program("key", Workload.of({"T": 300}), (launch,), file.read(), {"run": sys.argv[2]})
worker.memory.renew(UNCHANGED)
worker.run(program, 0, 0xFF)
worker.memory.show()
assert (memory.data[4096:5296].view(np.float32) == 6).all()
worker.kill()
print(json.dumps([worker.limits, 0]))
"""


class TestEnds:
    """Whoever is killed, nothing is left."""

    # Starts a device, reports its processes, and waits in a kernel that never ends.
    SCRIPT = """
import json, sys, threading, time
from pathlib import Path
from tuner.device.base import Program
from tuner.extensions.cpu.device import HostDevice
from tuner.model.kernel import Launch, Workload
from tuner.space.load import load_definition

def main():
    definition = load_definition(Path(sys.argv[1]))
    device = HostDevice(definition.spec, {}, run_timeout_s=60.0)
    launch = Launch("run", (1, 1, 1), (32, 1, 1))
    library = Path(sys.argv[2]).read_bytes()
    workload = Workload.of({"N": 1000})
    program = Program("key", workload, (launch,), library, {"run": sys.argv[3]})
    threading.Thread(target=device.run, args=(program,), daemon=True).start()
    server = device._runner._worker.pid
    children = Path(f"/proc/{server}/task/{server}/children")
    while not children.read_text():
        time.sleep(0.01)
    time.sleep(0.3)
    pids = [server, device._verifier._process.pid, *map(int, children.read_text().split())]
    print(json.dumps(pids), flush=True)
    time.sleep(60)

if __name__ == '__main__':  # the verifier's process imports this
    main()
"""

    @pytest.mark.parametrize("victim", ["parent", "server"])
    def test_nothing_outlives_it(
        self, compiler: HostCompiler, project: Path, tmp_path: Path, victim: str
    ) -> None:
        source = 'extern "C" __global__ void run(float*, const float*, int) { for (;;) {} }'
        result = compiler.submit(CompileRequest(source, ("run",), "sm_90a")).result()
        script, library, temporary = (tmp_path / name for name in ("main.py", "library", "made"))
        library.write_bytes(result.cubin)
        temporary.mkdir()
        script.write_text(self.SCRIPT)
        arguments = [script, project / "scale.yaml", library, result.lowered["run"]]
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        with process:
            assert process.stdout is not None
            pids = json.loads(process.stdout.readline())
            server, _, child = pids
            os.kill(process.pid if victim == "parent" else server, signal.SIGKILL)
            wait_until_gone([child])
            process.kill()
        wait_until_gone(pids)
        assert victim == "server" or list(temporary.iterdir()) == []


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, [pid for pid in pids if alive(pid)]
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


class TestMemory:
    def test_a_workload_beyond_the_memory_is_refused_before_anything_dies(
        self, make_spec: MakeSpec, device: HostDevice
    ) -> None:
        available = available_bytes()
        assert available is not None
        workload = Workload.of({"T": available})
        with pytest.raises(DeviceError, match=r"not enough memory for .* GB to share, of"):
            device.run(Program("key", workload, (LAUNCH,), b"", {"run": "run"}))

    def test_a_container_may_have_less_than_the_system(self, tmp_path: Path) -> None:
        (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 5000 kB\n")
        assert available_bytes(tmp_path / "meminfo", tmp_path) == 5000 << 10
        (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 300\nactive_file 200\n")
        (tmp_path / "memory.current").write_text("1000\n")
        (tmp_path / "memory.max").write_text("max\n")
        assert available_bytes(tmp_path / "meminfo", tmp_path) == 5000 << 10
        (tmp_path / "memory.max").write_text("2000\n")
        assert available_bytes(tmp_path / "meminfo", tmp_path) == 1500
        assert available_bytes(tmp_path / "absent", tmp_path) == 1500
        assert available_bytes(tmp_path / "absent", tmp_path / "absent") is None

    def test_it_can_be_opened_through_the_process_alone_and_not_be_cut(
        self, make_spec: MakeSpec
    ) -> None:
        shared = Path("/dev") / "shm"
        before = set(shared.iterdir())
        memory = SharedMemory()
        layout: Layout = lay_out(make_spec(*ARGUMENTS), WORKLOAD.values)
        arena = memory.open("key", layout)
        assert set(shared.iterdir()) == before
        assert arena.host_name is not None
        with Path(arena.host_name).open("r+b") as file, pytest.raises(PermissionError):
            file.truncate(0)
        memory.close()
        assert not Path(arena.host_name).exists()


@pytest.mark.parametrize(
    ("machine", "header"),
    [
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        ("aarch64", "/usr/include/asm-generic/unistd.h"),
    ],
)
def test_the_numbers_of_system_calls_are_the_systems(machine: str, header: str) -> None:
    if not Path(header).is_file():
        pytest.skip("no header to compare with")
    known = dict(
        re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(header).read_text(encoding="utf-8"))
    )
    known.setdefault("newfstatat", known.get("fstatat"))
    table = MACHINES[machine]
    numbers = {**table.allowed, **table.deadly, **table.signalling, "prlimit64": table.prlimit64}
    numbers |= {name: number for name, (number, _) in table.opening.items()}
    assert {name: str(number) for name, number in numbers.items()} == {
        name: known[name] for name in numbers
    }
