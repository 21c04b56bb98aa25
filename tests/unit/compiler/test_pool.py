import errno
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from tuner.compiler.base import CompileRequest
from tuner.compiler.cache import Cache
from tuner.compiler.pool import CompilerProcess, NvrtcPool
from tuner.model.errors import WorkerError

ROOT = Path(__file__).parents[3]
DATA = Path(__file__).with_name("data")
COPY = 'extern "C" __global__ void copy(float* to, const float* from) { *to = *from; }\n'
# Every level doubles the number of distinct types.
ENDLESS = (DATA / "endless.cu").read_text()


HANG_S = 60.0


def request(source, *kernels, architecture="sm_90a", **more):
    return CompileRequest(source, kernels or ("copy",), architecture, **more)


def worker_ids(folder):
    """Find the workers by the cache folder on their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if b"tune-compiler" in command and os.fsencode(folder) in command:
            found.append(int(entry.name))
    return found


def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def pool(folder):
    with NvrtcPool(workers=1, cache=Cache(folder)) as pool:
        yield pool


@pytest.fixture
def compiled(pool):
    def compiled(source, *kernels, **more):
        result = pool.submit(request(source, *kernels, **more)).result()
        assert result.ok, result.error
        return result

    return compiled


@pytest.fixture
def error_of(pool):
    def error_of(source, *kernels, **more):
        result = pool.submit(request(source, *kernels, **more)).result()
        assert not result.ok
        assert not result.cubin
        return result.error

    return error_of


def test_a_number_that_nvcc_narrows_with_a_warning_is_taken(compiled):
    pair = "struct Pair { unsigned a, b; __device__ Pair(unsigned a, unsigned b) : a(a), b(b) {} };"
    kernel = "__global__ void k(unsigned* y, int n) { y[0] = Pair{threadIdx.x, n}.b; }"
    compiled(f"{pair}\n{kernel}\n", "k")


def test_maps_name_expressions_to_lowered_names(compiled):
    source = """\
        constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
        template <typename T, int n> __global__ void fill(T* to) { to[threadIdx.x] = n; }
        namespace deep { template <int n> __global__ void fill(int* to) { *to = n; } }
    """
    names = ("fill<float, 8>", "fill<double,ceil_div(9, 2)>", "deep::fill<3>")

    result = compiled(source, *names)

    assert list(result.lowered) == list(names)
    assert result.lowered["fill<float, 8>"] == "_Z4fillIfLi8EEvPT_"
    assert set(result.resources) == set(names)
    assert all(lowered.encode() in result.cubin for lowered in result.lowered.values())


def test_reports_shared_memory_barriers_and_spills(compiled):
    resources = compiled((DATA / "spills.cu").read_text()).resources["copy"]

    assert resources.registers <= 32
    assert resources.spill_bytes
    assert resources.spill_store_bytes > 0
    assert resources.stack_bytes > 0
    assert resources.static_shared_bytes == 4096
    assert resources.barriers == 1


def test_cuda_headers_and_habitual_includes_work(compiled):
    assert compiled((DATA / "habitual_includes.cu").read_text()).cubin.startswith(b"\x7fELF")


def test_cub_and_cooperative_groups_work(compiled):
    source = (DATA / "cub.cu").read_text()
    assert compiled(source, "sum<128>").resources["sum<128>"].static_shared_bytes > 0


def test_register_counts_are_those_of_the_target(compiled):
    source = COPY.replace("*to = *from", "to[threadIdx.x] = sinf(from[threadIdx.x])")
    cold = compiled(source)

    again = compiled(source + "// not the same text\n")

    assert again.resources == cold.resources
    assert again.cubin == cold.cubin
    assert compiled(source, architecture="sm_80").cubin != cold.cubin


def test_an_error_names_its_line(error_of):
    for name in ("nothing", "never", "nowhere"):
        error = error_of("#include <cuda_bf16.h>\n\n" + COPY.replace("*from", name))

        assert error.startswith(f'kernel.cu(3): error: identifier "{name}" is undefined\n  extern')
        assert "precompiled" not in error
        assert "detected in the compilation" not in error


def test_a_missing_kernel_is_an_error_that_names_those_there_are(error_of):
    source = COPY + "template <int n> __global__ void __launch_bounds__(max(n, 32)) fill(int*) {}\n"

    assert error_of(source, "copy", "move<8>") == (
        'kernel.cu: error: no kernel `move<8>` (identifier "move" is undefined); '
        "the source has copy, fill"
    )
    assert "cannot determine which instance" in error_of(source, "fill")
    assert "the source has no __global__ function" in error_of("int a;", "copy")


def test_an_unknown_header_is_an_error(error_of):
    assert 'kernel.cu(1): catastrophic error: cannot open source file "vector"' in error_of(
        "#include <vector>\n" + COPY
    )
    assert "cannot open source file" in error_of('#include "pyproject.toml"\n' + COPY)
    outside = error_of(COPY + '#include "/etc/passwd"\n')
    assert outside.startswith("kernel.cu(2): error: #include of the absolute path")
    assert "root:" not in outside


def test_an_unknown_option_or_architecture_is_an_error(error_of):
    assert "unrecognized option --nonsense" in error_of(COPY, options=("--nonsense",))
    assert "--gpu-architecture" in error_of(COPY, architecture="sm_42")


def test_options_and_include_dirs_reach_the_compiler(compiled, error_of, tmp_path):
    (tmp_path / "factor.cuh").write_text("constexpr float factor = 2;\n")
    source = '#include "factor.cuh"\n' + COPY.replace("*from", "*from * factor * MORE")
    options = {"options": ("-DMORE=3", "--std=c++20"), "include_dirs": (str(tmp_path),)}
    first = compiled(source, **options)
    assert compiled(source, **options).cached

    (tmp_path / "factor.cuh").write_text("constexpr float factor = 5;\n")

    edited = compiled(source, **options)
    assert not edited.cached
    assert edited.cubin != first.cubin


def test_results_and_errors_come_from_the_cache_the_second_time(pool, folder):
    good, bad = request(COPY + "// cached\n"), request(COPY + "nonsense\n")
    fresh = [pool.submit(each).result() for each in (good, bad)]

    with NvrtcPool(workers=1, cache=Cache(folder)) as other:
        again = [other.submit(each).result() for each in (good, bad)]

    assert [result.cached for result in fresh + again] == [False, False, True, True]
    assert again == [replace(result, cached=True, seconds=0.0) for result in fresh]


def test_equal_requests_in_flight_are_compiled_once(folder):
    with NvrtcPool(workers=2, cache=Cache(folder / "once")) as pool:
        futures = [pool.submit(request(COPY)) for _ in range(5)]
        results = [future.result() for future in futures]

    assert all(result is results[0] for result in results)


def test_what_is_asked_for_just_after_all_others_have_given_it_up_is_compiled(folder):
    is_free, goes_on = Event(), Event()
    with NvrtcPool(workers=1, cache=Cache(folder / "again")) as pool:
        assert pool.version
        pool._pool.submit(lambda worker: is_free.wait(30))
        first = pool.submit(request(COPY))
        assert until(lambda: pool._pool._waiting)
        pool._thread.submit(goes_on.wait, 30)  # which tells what became of it
        assert first.cancel()
        is_free.set()
        assert until(lambda: not (pool._pool._waiting or pool._pool._running))
        second = pool.submit(request(COPY))
        goes_on.set()
        assert second.result(30).ok


def test_an_endless_compile_is_killed_and_others_go_on(folder):
    with NvrtcPool(workers=1, timeout_s=1.0, cache=Cache(folder / "endless")) as pool:
        endless = pool.submit(request(ENDLESS))
        other = pool.submit(request(COPY))

        assert endless.result().timed_out
        assert endless.result().error == "compiling took over 1 s and was stopped"
        assert other.result().ok
        assert len(worker_ids(folder / "endless")) == 1


def test_without_room_for_another_process_it_goes_on_with_those_it_has(folder, monkeypatch):
    started, room = [], iter(range(2))

    def limited(*arguments):
        if next(room, None) is None:
            raise OSError(errno.EMFILE, "Too many open files")
        started.append(CompilerProcess(*arguments))
        return started[-1]

    monkeypatch.setattr("tuner.compiler.pool.CompilerProcess", limited)
    with NvrtcPool(workers=4, cache=Cache(folder / "limited")) as pool:
        futures = [pool.submit(request(COPY + "//" * copies)) for copies in range(6)]
        assert all(future.result().ok for future in futures)
    assert len(started) == 2


def test_a_crash_of_the_compiler_is_an_error_and_others_go_on(folder):
    with NvrtcPool(workers=1, cache=Cache(folder / "crash")) as pool:
        assert pool.version
        endless = pool.submit(request(ENDLESS))
        other = pool.submit(request(COPY))
        [worker] = worker_ids(folder / "crash")
        assert until(lambda: pool._pool._running)
        os.kill(worker, signal.SIGSEGV)

        assert endless.result().error == "the compiler crashed (SIGSEGV)"
        assert not endless.result().timed_out
        assert other.result().ok


def test_close_is_prompt_and_cancels_what_is_left(folder):
    pool = NvrtcPool(workers=1, cache=Cache(folder / "close"))
    assert pool.version
    futures = [pool.submit(request(ENDLESS)), pool.submit(request(COPY))]
    start = time.monotonic()

    pool.close()
    pool.close()

    assert time.monotonic() - start < 2
    for future in futures:
        with pytest.raises(CancelledError):
            future.result(timeout=0)
    assert worker_ids(folder / "close") == []
    with pytest.raises(WorkerError, match="closed"):
        pool.submit(request(COPY))


def test_without_the_bindings_it_says_what_to_install(monkeypatch, tmp_path):
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda/__init__.py").write_text("raise ImportError('no CUDA bindings here')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    with NvrtcPool(workers=1, cache=Cache(tmp_path)) as pool:
        future = pool.submit(request(COPY))
        with pytest.raises(WorkerError, match="no CUDA bindings here") as caught:
            future.result()
        assert "pip install" in str(caught.value)
        with pytest.raises(WorkerError, match="no CUDA bindings here"):
            pool.submit(request(COPY))


def script(folder, body):
    start = textwrap.dedent("""\
        import sys
        sys.path.insert(0, sys.argv[1])
        from pathlib import Path
        from tuner.compiler.base import CompileRequest
        from tuner.compiler.cache import Cache
        from tuner.compiler.pool import NvrtcPool
        pool = NvrtcPool(workers=1, cache=Cache(Path(sys.argv[2])))
        source = sys.argv[3]
    """)
    return subprocess.Popen(
        [sys.executable, "-c", start + textwrap.dedent(body), ROOT, folder, ENDLESS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_its_parent(folder, kill):
    home = folder / kill.name
    body = """\
        with pool:
            future = pool.submit(CompileRequest(source, ("copy",), "sm_90a"))
            print(pool.version, flush=True)
            future.result()
    """
    with script(home, body) as parent:
        assert parent.stdout.readline().startswith("NVRTC")
        assert len(worker_ids(home)) == 1

        os.killpg(parent.pid, kill)

        # That it ends at all is the point, not how soon: on a busy machine Python takes seconds.
        _, errors = parent.communicate(timeout=HANG_S)
        assert ("KeyboardInterrupt" in errors) == (kill == signal.SIGINT)
    assert until(lambda: not worker_ids(home), HANG_S)


def test_runs_that_start_at_once_share_a_new_cache(folder):
    home = folder / "shared"
    body = """\
        start = "#include <cuda_bf16.h>\\n__global__ void k(int* a)"
        sources = [start + f"{{ *a = {i}; }}" for i in range(6)]
        with pool:
            futures = [pool.submit(CompileRequest(s, ("k",), "sm_90a")) for s in sources]
            print([future.result().error for future in futures])
    """
    runs = [script(home, body), script(home, body)]
    outputs = [run.communicate(timeout=60) for run in runs]

    assert outputs == [(str([""] * 6) + "\n", "")] * 2
    entries = [path.name for path in home.glob("compiled/*")]
    assert len(entries) == 6
    assert not any(name.startswith(".") for name in entries)
    assert len(list(home.glob("headers-*"))) <= 1


MACROS = [f"#define A{i} A{i - 1} A{i - 1} A{i - 1}\n" for i in range(1, 31)]
BOMBS = {
    "templates without end": "template <int N> struct A { A<N + 1> a; A<N + 2> b; };\nA<0> x;\n",
    "a constant of 64 GB": "struct S { int a[1L << 34]; };\n__device__ S s = {{1}};\n",
    "a macro of 3 ** 30 words": "#define A0 int x;\n" + "".join(MACROS) + "A30\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_bomb_ends_as_one_failed_compile(bomb):
    with NvrtcPool(workers=1, timeout_s=20) as patient:
        assert not patient.submit(request(bomb)).result(timeout=100).ok
        after = patient.submit(request(COPY)).result(timeout=100)
    assert after.ok, after.error


def test_a_macro_in_a_header_cannot_reach_outside(error_of, tmp_path):
    (tmp_path / "include").mkdir()
    secret = tmp_path / "secret.h"
    secret.write_text("int SECRET_WORD = ;\n")
    header = f"#define TEXT(x) #x\n#include TEXT({secret})\n"
    (tmp_path / "include/a.h").write_text(header)
    if not confine_compiler_works():
        pytest.skip("no Landlock in this kernel")

    error = error_of('#include "a.h"\n' + COPY, include_dirs=(str(tmp_path / "include"),))

    assert "cannot open source file" in error
    assert "SECRET_WORD" not in error


def confine_compiler_works():
    code = "from tuner.process.confinement import *; print(confine_compiler([], []))"
    return "True" in subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT)
