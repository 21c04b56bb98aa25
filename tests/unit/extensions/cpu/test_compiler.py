"""Compiling for the `host` device: what is taken, what is refused, and in which words."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tuner.compiler import command
from tuner.compiler.base import CompileRequest, CompileResult
from tuner.compiler.cache import Cache
from tuner.compiler.command import MOST_RUNS, PREFIX, remove_left_behind, scratch_folder
from tuner.extensions.cpu.compiler import HostCompiler, errors, preload, sanitizer_finding
from tuner.extensions.cpu.host_source import to_host
from tuner.model.errors import DeviceError

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

DATA = Path(__file__).with_name("data")
KERNEL = 'extern "C" __global__ void run(int* y) {{ {} }}\n'


class NewCache(Cache):
    """Hold nothing yet but runtimes, which are kept for all: each takes seconds to compile."""

    def get(self, key: str) -> CompileResult | None:
        return super().get(key) or Cache().get(key)

    def put(self, key: str, result: CompileResult) -> None:
        is_runtime = result.ok and not result.lowered
        (Cache() if is_runtime else super()).put(key, result)


def by(compiler: HostCompiler, source: str, *kernels: str, **more: object) -> CompileResult:
    asked = CompileRequest(source, kernels or ("run",), "sm_90a", **more)  # type: ignore[arg-type]
    return compiler.submit(asked).result()


Compiled = Callable[..., CompileResult]


@pytest.fixture
def compiled(compiler: HostCompiler) -> Compiled:
    return partial(by, compiler)


def test_a_link_out_of_a_declared_folder_is_refused_with_its_line(
    compiled: Compiled, tmp_path: Path
) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "secret.txt").write_text("int secret;\n")
    (tmp_path / "inside" / "shown.h").symlink_to(tmp_path / "secret.txt")
    source = "\n\n#include <shown.h>\n" + KERNEL.format("")
    error = compiled(source, include_dirs=(str(tmp_path / "inside"),)).error
    assert error.startswith("kernel.cu(3): error: ")
    assert error.endswith("outside the include folders")


def test_the_environment_is_not_passed_on(
    compiled: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hidden.h").write_text("")
    monkeypatch.setenv("CPATH", str(tmp_path))
    monkeypatch.setenv("GCC_EXEC_PREFIX", "/nowhere/")
    monkeypatch.setenv("COMPILER_PATH", "/nowhere")
    error = compiled("#include <hidden.h>\n" + KERNEL.format("")).error
    assert "kernel.cu(1): error: hidden.h: No such file" in error
    assert compiled("// another\n" + KERNEL.format("y[0] = 5;")).ok


READ_FILE = r".text,\"ax\"\n.incbin \"/etc/hostname\"\n#"
EXITS = 'asm volatile("griddepcontrol.wait;\\n\\t" "exit;");'
PREFETCH = 'asm volatile("prefetch.global.L2 [%0], 1;" ::"l"(y));'
TELLING = ("ON_HOST_ADDRESS", "ON_HOST_UNDEFINED", "__SANITIZE_ADDRESS__", "__SANITIZE_THREAD__")
# What is before the kernel, in it, and what the message says.
REFUSED = [
    # What could read a file.
    (f'__attribute__((section("{READ_FILE}"))) int a;', "", "a name in `section`"),
    (f'[[gnu::__section__ ("a" "{READ_FILE}")]] int a;', "", "a name in `section`"),
    ('int b; extern int a __attribute__((alias("b\\n.incbin \\"/etc/hostname\\"")));',
     *("", "a name in `alias`")),
    ('#pragma GCC pch_preprocess "made.gch"', "", "pragma GCC pch_preprocess"),
    ('_Pragma("GCC pch_preprocess \\"made.gch\\"")', "", "`_Pragma` of GCC pch_preprocess"),
    ('asm(".incbin \\"/etc/hostname\\"");', "", "inline PTX `.incbin"),
    ('int a asm("b");', "", "inline PTX"),
    ("char16_t q = u'\"'; asm(\".incbin 1\"); char16_t r = u'\"';", "", "inline PTX `.incbin 1`"),
    ("int d = 1'0; asm(\".incbin 1\"); int e = 1'0;", "", "inline PTX `.incbin 1`"),
    ('# 1 "claimed.h" 3\nasm(".incbin \\"/etc/hostname\\"");', "", "`asm` that may name a file"),
    ('#pragma GCC system_header\n# 5 "claimed.h" 3\n__attribute__((section(R"(a"b)"))) int a;',
     *("", "a name in `section`")),
    # What could tell that a sanitizer watches, or keep it out.
    ('extern "C" __attribute__((weak)) void __asan_init();', "", "`__asan_init` is not allowed"),
    ('#define JOIN(a, b) a##b\nextern "C" __attribute__((weak)) int JOIN(__ubsan, _handle)();',
     *("", "`__ubsan_handle` is not allowed")),
    ('extern "C" int f() __asm__("__as" "an_init");', "", "inline PTX `__asan_init`"),
    ('extern "C" void* dlsym(void*, const char*);', "", "`dlsym` is not allowed"),
    ('__attribute__((no_sanitize("address"))) int f();', "", "sanitizers watch all of it"),
    ('# 1 "claimed.h" 3\n__attribute__((no_sanitize_address)) int f();',
     *("", "sanitizers watch all of it")),
    # What only a GPU has.
    ("", "\n__cluster_barrier_arrive();\n", "kernel.cu(3): error: ", "`#ifdef __CUDA_ON_HOST__`"),
    ("", "\nnamespace cg = cooperative_groups;\n", "(3): error: ", "`#ifdef __CUDA_ON_HOST__`"),
    ("", EXITS, "inline PTX `exit`"),
    ("", PREFETCH, "inline PTX"),
    # Lines stay those of the source.
    ("", 'asm("");\n\n__shared__ int a;\nunknown();', "kernel.cu(5): error: ", "unknown"),
    # All memory.
    ("char big[1ll << 33] = {1};", "y[0] = big[3];", ""),
]  # fmt: skip


@pytest.mark.parametrize("sanitizers", [(), ("undefined",), ("address",)], ids=" ".join)
def test_a_kernel_is_the_same_text_with_a_sanitizer_and_without(
    sanitizers: tuple[str, ...],
) -> None:
    known = " || ".join(f"defined({one})" for one in TELLING)
    source = f"#include <vector>\n#if {known}\n#error seen\n#endif\n{KERNEL.format('')}"
    with closing(HostCompiler(sanitizers=sanitizers, cache=Cache())) as compiler:
        result = by(compiler, source)
    assert result.ok, result.error


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case[0]}{case[1]}"[:40])
def test_what_cannot_be_taken_is_refused(compiled: Compiled, case: tuple[str, ...]) -> None:
    before, body, *told = case
    error = compiled(f"{before}\n{KERNEL.format(body)}").error
    assert "error" in error or not any(told)
    assert error
    assert all(one in error for one in told)
    assert "tune_" not in error


@pytest.mark.parametrize(
    ("before", "body"),
    [
        ('__attribute__((section(".data.mine"))) int a = 1;', "y[0] = a;"),
        ("", '\n#ifdef __CUDA_ON_HOST__\ny[0] = 1;\n#else\nasm("exit;");\n#endif\n'),
        # Hints in PTX are dropped.
        ("", 'asm volatile("griddepcontrol.wait;" ::: "memory");'),
        ("", 'asm volatile("prefetch.global.L2 [%0];" ::"l"(y));'),
        ("", 'asm volatile("" ::: "memory");'),
        ("", 'y[0] = "asm(" [0];'),
    ],
)
def test_what_a_cpu_can_do_is_taken(compiled: Compiled, before: str, body: str) -> None:
    assert compiled(f"{before}\n{KERNEL.format(body)}").ok


def test_inline_ptx_that_nobody_calls_does_no_harm(compiled: Compiled) -> None:
    ptx = 'asm("tex.1d.f32 %0, %1;" : "=f"(x) : "f"(x));'
    before = f"__device__ __forceinline__ float raised(float x) {{\n{ptx} return x; }}\n"
    assert compiled(before + KERNEL.format("y[0] = 1;")).ok
    error = compiled(before + KERNEL.format("y[0] = raised(y[1]);")).error
    assert "kernel.cu(2): error: inline PTX `tex.1d.f32 %0, %1`" in error
    assert "`#ifdef __CUDA_ON_HOST__`" in error


@pytest.mark.parametrize(
    ("instruction", "told"),
    [
        ("add.s32 %0, %1;", "add.s32 %0, %1"),
        ("mov.b32 %0, 1; add.s32.fast %0, %1, 2;", "add.s32.fast %0, %1, 2"),
        ("@p mov.b32 %0, %1;", "@p mov.b32 %0, %1"),
        ("mov.b32 %0, %nowhere;", "mov.b32 %0, %nowhere"),
        ("bra DONE;", "bra DONE"),
        ("add.s32 %0, %1, %2;", "add.s32 %0, %1, %2"),
        ("ld.global.b32 %0, [%1 * 4];", "ld.global.b32 %0, [%1 * 4]"),
        ("{ mov.b32 %0, %1;", "{ without }"),
        ("cvt.rn.f16x2.f32 %0, %1;", "cvt.rn.f16x2.f32 %0, %1"),
        ("tcgen05.wait::ld.sync.aligned;", "tcgen05.wait::ld.sync.aligned"),
        (".shared .b8 held[4];", ".shared .b8 held[4]"),
    ],
)
def test_an_instruction_that_is_not_known_is_named(instruction: str, told: str) -> None:
    text = to_host(f'# 1 "kernel.cu"\nasm("{instruction}" : "=r"(x) : "r"(y));\n')
    plain = re.sub(r"[^\w .,:;%@!\[\]{}()+-]", " ", told)
    assert f'error("inline PTX `{plain}` can\'t run on the CPU")' in text


def test_a_call_of_a_member_template_needs_no_word_for_it(compiled: Compiled) -> None:
    before = (
        "template <class T> struct Cast { template <int N> static T of(T x) { return x + N; } };"
    )
    before += " template <class T> __device__ T cast(T x) { return Cast<T>::of<3>(x); }"
    assert compiled(f"{before}\n{KERNEL.format('y[0] = cast(y[1]);')}").ok


def test_a_log_without_errors_is_shown_as_it_is() -> None:
    request = CompileRequest("", ("run",), "sm_90a")
    assert errors("cc1plus: out of memory\n", request) == "cc1plus: out of memory"
    assert errors("", request) == "g++ failed without a message"


def test_the_branch_of_the_gpus_architecture_is_taken(compiler: HostCompiler) -> None:
    body = "\n#if __CUDA_ARCH__ != 900\n#error not Hopper\n#endif\n"
    for architecture, told in (("sm_90a", ""), ("sm_80", "not Hopper")):
        request = CompileRequest(KERNEL.format(body), ("run",), architecture)
        error = compiler.submit(request).result().error
        assert told in error
        assert bool(error) is bool(told)


def test_a_kernel_that_is_absent_is_named(compiled: Compiled) -> None:
    error = compiled(KERNEL.format(""), "run", "walk<3>").error
    assert "the kernel `walk<3>` cannot be launched" in error


def test_a_compile_over_its_time_is_killed() -> None:
    with closing(HostCompiler(timeout_s=0.05)) as compiler:
        result = by(compiler, KERNEL.format(""))
    assert result.timed_out
    assert "killed after 0.05 s" in result.error


MACROS = "".join(f"#define A{n} A{n - 1} A{n - 1} A{n - 1}\n" for n in range(1, 31))
BOMBS = {
    "a macro of 3 ** 30 words": f"#define A0 int x;\n{MACROS}A30\n",
    "errors without end": f"#define A0 foo;\n{MACROS}A12\n",
    "a file of itself": '#include "kernel.cu"\n',
    "templates without end": "template <int N> struct A { A<N + 1> a; };\nA<0> x;\n",
    "a constant that is never known": (
        "constexpr int f() { while (true) {} return 0; }\nconstexpr int x = f();\n"
    ),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_bomb_ends_as_one_failed_compile(
    monkeypatch: pytest.MonkeyPatch, compiler: HostCompiler, bomb: str
) -> None:
    monkeypatch.setattr(command, "MAX_FILE_BYTES", 8 << 20)
    request = CompileRequest("__global__ void k(int* y) {}\n" + bomb, ("k",), "sm_90a")
    result = compiler.submit(request).result(timeout=100)
    assert not result.ok
    assert not result.timed_out
    assert 0 < len(result.error) < 20_000


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DeviceError, match=r"needs g\+\+"):
        HostCompiler()


KILLED = """#!/bin/sh
case "$*" in *unit.ii*)
  printf x >> '{runs}'
  [ "$(wc -c < '{runs}')" -le {times} ] && kill -KILL $$
esac
exec {real} "$@"
"""


@pytest.mark.parametrize(
    ("declaration", "names"),
    [
        ("__shared__ float a[4], b[2][3 < 4 ? 1 : 2], c;", "a b c"),
        ("__shared__ __attribute__((aligned(16))) char a[4];", "a"),
        ("volatile __shared__ alignas(16) int a[4];", "a"),
        ("static __shared__ typename Sum<int, 3>::Storage storage;", "storage"),
        ("__shared__ union { float f; int i; } u;", "u"),
        ("__shared__ static const float* rows[4], *row;", "rows row"),
    ],
)
def test_each_declared_name_is_watched(declaration: str, names: str) -> None:
    text = to_host(f'# 1 "kernel.cu"\n{declaration}\n')
    for name in names.split():
        assert f"static auto& {name} " in text
    assert text.count(".enter(") == len(names.split())


def test_a_type_of_cuda_that_is_declared_ahead_stays_what_it_is() -> None:
    text = to_host('# 1 "kernel.cu"\nstruct __nv_bfloat16;\nstruct __half; class Own;\n')
    assert text == '# 1 "kernel.cu"\n;\n; class Own;\n'


def test_a_pointer_to_an_array_stays_a_plain_static() -> None:
    text = to_host('# 1 "kernel.cu"\n__shared__ float (*rows)[4];\n')
    assert text == '# 1 "kernel.cu"\nstatic float (*rows)[4];\n'


def test_lines_stay_where_they_are() -> None:
    text = to_host('# 1 "kernel.cu"\n__shared__\nfloat a[\n4];\nint b;\n')
    assert text.splitlines()[4] == "int b;"


def test_an_equal_request_is_answered_from_it(tmp_path: Path) -> None:
    cache, header = NewCache(tmp_path / "cache"), tmp_path / "value.h"
    source = '#include "value.h"\n#include <cfloat>\n' + KERNEL.format("y[0] = kValue;")
    folders = (str(tmp_path),)
    with (
        closing(HostCompiler(workers=1, cache=cache)) as compiler,
        closing(HostCompiler(1, cache=cache, sanitizers=("undefined",))) as sanitized,
    ):
        for value in (1, 22):
            header.write_text(f"constexpr int kValue = {value};\n")
            assert not by(compiler, source, include_dirs=folders).cached
        stored = by(compiler, source, include_dirs=folders)
        assert (stored.error, stored.cached) == ("", True)
        assert list(stored.lowered) == ["run"]
        assert not by(sanitized, source, include_dirs=folders).cached


def test_an_error_is_kept_but_a_kill_is_not(tmp_path: Path) -> None:
    cache = NewCache(tmp_path)
    for timeout_s, source in ((60.0, KERNEL.format("unknown();")), (0.01, KERNEL.format(""))):
        compiler = HostCompiler(workers=1, cache=cache, timeout_s=timeout_s)
        by(compiler, source)
        assert by(compiler, source).cached is (timeout_s > 1)
        compiler.close()


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Path]:
    """Put a g++ first in PATH that is killed so often before it compiles a kernel."""

    def make(times: int) -> Path:
        runs = tmp_path / "runs"
        script = tmp_path / "bin" / "g++"
        script.parent.mkdir()
        script.write_text(KILLED.format(runs=runs, times=times, real=shutil.which("g++")))
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
        return runs

    return make


def test_a_few_kills_cost_nothing(killed: Callable[[int], Path], tmp_path: Path) -> None:
    runs = killed(MOST_RUNS - 1)
    with closing(HostCompiler(workers=1, cache=NewCache(tmp_path))) as compiler:
        assert by(compiler, KERNEL.format("y[0] = 41;")).ok
    assert len(runs.read_text()) == MOST_RUNS


def test_one_that_is_killed_always_is_an_error_that_is_not_kept(
    killed: Callable[[int], Path], tmp_path: Path
) -> None:
    runs = killed(99)
    cache = NewCache(tmp_path)
    source = KERNEL.format("y[0] = 42;")
    with closing(HostCompiler(workers=1, cache=cache)) as compiler:
        result = by(compiler, source)
        assert result.error == "the compiler was killed 4 times: memory may have run out"
        assert len(runs.read_text()) == MOST_RUNS
        runs.write_text("x" * 99)
        assert by(compiler, source).ok


def test_only_the_address_sanitizer_needs_a_library() -> None:
    assert preload(()) == preload(("undefined",)) == {}
    environment = preload(("address", "undefined"))
    assert Path(environment["LD_PRELOAD"]).is_absolute()
    assert "detect_leaks=0" in environment["ASAN_OPTIONS"]


def test_an_unknown_sanitizer_is_refused() -> None:
    with pytest.raises(DeviceError, match="not all of"):
        HostCompiler(sanitizers=("thread",))


HEAP = (DATA / "heap.txt").read_text()
STACK = (DATA / "stack.txt").read_text()
SIGNAL = (DATA / "signal.txt").read_text()
UNDEFINED = (
    "kernel.cu:3:50: runtime error: signed integer overflow: 2147483647 + 1 cannot be represented "
    "in type 'int'\n"
)


@pytest.mark.parametrize(
    ("report", "finding"),
    [
        (
            HEAP,
            "kernel.cu(2): heap-buffer-overflow, write of 4 bytes, "
            "0 bytes to the right of 16-byte region",
        ),
        (STACK, "kernel.cu(12): stack-buffer-overflow, read of 16 bytes"),
        (SIGNAL, "part.cuh(7): SEGV on unknown address 0x000000000008"),
        (
            UNDEFINED,
            "kernel.cu(3): signed integer overflow: 2147483647 + 1 cannot be represented "
            "in type 'int'",
        ),
        (UNDEFINED + HEAP, sanitizer_finding(UNDEFINED)),
        ("Segmentation fault\n", ""),
        ("", ""),
    ],
)
def test_a_report_becomes_its_line_and_what_was_done(report: str, finding: str) -> None:
    assert sanitizer_finding(report) == finding


HOLD = """
import sys
from tuner.compiler.command import scratch_folder
with scratch_folder() as folder:
    (folder / "unit.ii").write_text("int a;")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of this test only."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def holder() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_one_in_use_stays_and_one_of_a_killed_process_goes(temporary: Path) -> None:
    with holder() as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        with scratch_folder() as own:
            assert own.parent == temporary
            remove_left_behind()
            assert own.exists()
        assert not own.exists()
        assert (folder / "unit.ii").exists()
        process.send_signal(signal.SIGKILL)
    assert folder.exists()
    remove_left_behind()
    assert list(temporary.iterdir()) == []


def test_what_a_link_of_such_a_name_leads_to_stays(temporary: Path) -> None:
    (temporary / "mine").mkdir()
    (temporary / "mine" / "notes").touch()
    (temporary / f"{PREFIX}link").symlink_to(temporary / "mine")
    (temporary / f"{PREFIX}file").touch()
    remove_left_behind()
    left = {path.name for path in temporary.iterdir()}
    assert left == {"mine", f"{PREFIX}file", f"{PREFIX}link"}
    assert (temporary / "mine" / "notes").exists()


def test_inline_ptx_is_refused_with_its_line_the_reason_and_the_remedy(compiled: Compiled) -> None:
    ptx = "{\\n\\t.reg .pred p;\\n\\tmma.sync.aligned.m16n8k16 %0;\\n\\t}"
    error = compiled(KERNEL.format(f'\nasm volatile("{ptx}" :: "r"(1));')).error
    assert "(2): error: inline PTX `mma.sync.aligned.m16n8k16 %0` can't run on the CPU" in error
    assert "<tune/tensor.h>" in error
    assert "`#ifdef __CUDA_ON_HOST__`" in error
