"""HIP by clang: code objects, what they say of their kernels, and errors by the source's lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from clangs import OLD_TARGETS, needs_clang, stand_in

from tuner.compiler.base import CompileRequest, CompileResult
from tuner.compiler.cache import Cache
from tuner.extensions.backends.hip.compiler import HipCompiler, code_options, find_clang, wave_sizes
from tuner.model.errors import DeviceError
from tuner.model.hardware import AMD_TARGETS

SCALE = """#include <hip/hip_runtime.h>
template <int N> __global__ void __launch_bounds__(256) scale(float* y, const float* x, int n) {
  const int i = hipBlockIdx_x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * N;
}
"""


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HipCompiler]:
    cache = Cache(tmp_path_factory.mktemp("cache"))
    with closing(HipCompiler("gfx942", 1, cache=cache)) as compiler:
        yield compiler


def compiled(
    compiler: HipCompiler, source: str, *kernels: str, options: tuple[str, ...] = ()
) -> CompileResult:
    request = CompileRequest(source, kernels or ("run",), "gfx942", options)
    return compiler.submit(request).result()


def of_body(body: str, parameters: str = "float* y, const float* x") -> str:
    return f'extern "C" __global__ void run({parameters}) {{ {body} }}\n'


@needs_clang
class TestCodeObjects:
    def test_instances_of_a_template_have_names_and_resources(self, compiler: HipCompiler) -> None:
        result = compiled(compiler, SCALE, "scale<2>", "scale<3>")
        assert result.ok, result.error
        assert result.cubin.startswith(b"\x7fELF")
        assert result.lowered["scale<2>"] == "_Z5scaleILi2EEvPfPKfi"
        used = result.resources["scale<3>"]
        assert used.registers
        assert used.scalar_registers
        assert used.max_threads == 256
        assert wave_sizes(result.cubin) == {64}

    def test_every_rocm_since_6_loads_them(self, compiler: HipCompiler) -> None:
        abi_version = compiled(compiler, of_body("y[0] = gridDim.x;")).cubin[8]
        assert abi_version == 3  # of code object version 5, whatever clang's own default is

    def test_lds_and_scratch_are_read(self, compiler: HipCompiler) -> None:
        body = (
            "__shared__ float kept[1000]; float many[64]; const int n = (int)x[0];"
            "for (int i = 0; i < 64; ++i) many[i * n & 63] = x[i];"
            "kept[threadIdx.x] = many[n & 63]; __syncthreads(); y[0] = kept[n];"
        )
        used = compiled(compiler, of_body(body)).resources["run"]
        assert used.static_shared_bytes == 4000
        assert used.stack_bytes >= 256
        assert used.max_threads == 1024

    def test_spills_are_counted(self, compiler: HipCompiler) -> None:
        body = "float v[96]; for (int i = 0; i < 96; ++i) v[i] = x[i * 64 + threadIdx.x];"
        body += "__syncthreads();"
        body += "for (int i = 0; i < 96; ++i) y[i * 64 + threadIdx.x] = v[95 - i] * v[i];"
        attribute = "__attribute__((amdgpu_num_vgpr(32))) "
        source = of_body(body).replace("void run", f"void {attribute}run")
        source = source.replace("for (", '_Pragma("unroll") for (')
        assert compiled(compiler, source).resources["run"].spill_bytes

    def test_equal_requests_come_from_the_cache(self, compiler: HipCompiler) -> None:
        first = compiled(compiler, of_body("y[0] = 7 * x[0];"))
        again = compiled(compiler, of_body("y[0] = 7 * x[0];"))
        assert (first.cached, again.cached) == (False, True)
        assert again.cubin == first.cubin
        assert again.resources == first.resources

    def test_our_headers_have_what_kernels_use(self, compiler: HipCompiler) -> None:
        body = (
            "float v = expf(x[0]) + __expf(x[1]) + rsqrtf(x[2]) + tanhf(x[3]) + log2f(x[4]);"
            "v += __shfl_down(v, 32) + __shfl_up(v, 1) + __shfl(v, 3, 16) + gridDim.x;"
            "if (__any(v > 0) && !__all(v > 1)) atomicAdd(y, v);"
            "y[1] = __popcll(__ballot(v > 2)) + __half2float(__float2half(v)) + warpSize;"
            "y[2] = __bfloat162float(__float2bfloat16(v)) + std::max(v, 1.0f) + fminf(v, 2.0f);"
        )
        names = "<hip/hip_fp16.h>", "<hip/hip_bf16.h>", "<algorithm>", "<cstdint>"
        source = "".join(f"#include {name}\n" for name in names) + of_body(body)
        assert compiled(compiler, source).error == ""

    @pytest.mark.slow
    @pytest.mark.parametrize("target", ["gfx90a", "gfx1100"])
    def test_other_targets(self, target: str) -> None:
        with closing(HipCompiler(target, 1)) as compiler:
            request = CompileRequest(SCALE, ("scale<2>",), target)
            result = compiler.submit(request).result()
        assert result.ok, result.error
        assert wave_sizes(result.cubin) == {32 if target == "gfx1100" else 64}


@needs_clang
class TestErrors:
    @pytest.mark.parametrize(
        ("source", "told"),
        [
            ("\n" + of_body("y[0] = nothing;"),
             "kernel.cu(2): error: use of undeclared identifier"),
            (of_body("").replace("run", "go"), "no kernel `run`; the source has go"),
            (of_body("y[0] = powf(x[0], 2);"), "in ROCm's, which are taken where it is installed"),
            ("extern __device__ float far(float);\n" + of_body("y[0] = far(1);"),
             "nothing defines `far(float)`"),
            ('#include "/etc/hostname"\n' + of_body(""), "absolute path"),
            (of_body('asm volatile(".incbin \\"/etc/hostname\\"");'), "error: "),
        ],
    )  # fmt: skip
    def test_they_name_the_line_and_what_to_do(
        self, compiler: HipCompiler, source: str, told: str
    ) -> None:
        result = compiled(compiler, source)
        assert not result.ok
        assert told in result.error
        assert result.cubin == b""

    def test_an_option_that_could_reach_files_is_refused(self, compiler: HipCompiler) -> None:
        result = compiled(compiler, of_body(""), options=("-fplugin=/tmp/x.so",))
        assert "`-fplugin=/tmp/x.so`" in result.error
        assert compiled(compiler, of_body(""), options=("-DN=3", "-ffast-math")).ok

    def test_waves_of_another_size_than_the_targets_are_refused(self) -> None:
        source = of_body("y[0] = x[1];").replace(
            "void run", 'void __attribute__((target("wavefrontsize64"))) run'
        )
        with closing(HipCompiler("gfx1100", 1)) as compiler:
            asked = CompileRequest(source, ("run",), "gfx1100")
            result = compiler.submit(asked).result()
            by_option = replace(asked, source=of_body(""), options=("-mwavefrontsize64",))
            refused = compiler.submit(by_option).result()
        assert "waves of 64 lanes, and on gfx1100 `wave` is 32" in result.error
        assert "`-mwavefrontsize64` is none" in refused.error

    def test_a_compile_without_end_is_killed(self) -> None:
        endless = (
            "template <int N> struct S { static constexpr int v = S<N - 1>::v + S<N - 2>::v; };\n"
        )
        source = endless + of_body("y[0] = S<100000>::v;")
        with closing(HipCompiler("gfx942", 1, timeout_s=0.01)) as compiler:
            result = compiler.submit(CompileRequest(source, ("run",), "gfx942")).result()
        assert result.timed_out

    def test_nothing_is_compiled_after_closing(self) -> None:
        compiler = HipCompiler("gfx942", 1)
        compiler.close()
        with pytest.raises(Exception, match="closed"):
            compiler.submit(CompileRequest(SCALE, ("scale<2>",), "gfx942"))


class TestFinding:
    @pytest.fixture(autouse=True)
    def empty_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))

    def test_the_newest_is_taken(self, tmp_path: Path) -> None:
        for number in (17, 20, 19):
            stand_in(tmp_path / "bin", f"clang-{number}", f"{number}.1.0")
        assert find_clang("gfx942").name == "clang 20.1.0"
        stand_in(tmp_path / "bin", "clang", "21.1.0")
        assert find_clang("gfx942").name == "clang 21.1.0"

    def test_the_newest_that_knows_the_target_is_taken(self, tmp_path: Path) -> None:
        newer = (*OLD_TARGETS, "gfx950")
        stand_in(tmp_path / "rocm/llvm/bin", "clang++", "18.0.0")
        stand_in(tmp_path / "bin", "clang-19", "19.1.7")
        stand_in(tmp_path / "bin", "clang-20", "20.1.0", targets=newer)
        # One that was built without AMD's targets.
        stand_in(tmp_path / "bin", "clang-22", "22.1.0", targets=())
        assert find_clang("gfx950").name == "clang 20.1.0"
        assert find_clang("gfx942").name == "clang 18.0.0 of ROCm"

    def test_what_cannot_be_started_is_passed_over(self, tmp_path: Path) -> None:
        stand_in(tmp_path / "bin", "clang-19", "19.1.7")
        (tmp_path / "bin/clang-22").write_bytes(b"\0")
        (tmp_path / "bin/clang-22").chmod(0o755)
        assert find_clang("gfx942").name == "clang 19.1.7"

    def test_one_of_rocm_goes_first_with_its_own_headers(self, tmp_path: Path) -> None:
        stand_in(tmp_path / "bin", "clang-20", "20.1.0")
        path = stand_in(tmp_path / "rocm/llvm/bin", "clang++", "18.0.0")
        clang = find_clang("gfx942")
        assert (clang.path, clang.name) == (str(path), "clang 18.0.0 of ROCm")
        options = code_options(clang, CompileRequest("", (), "gfx942"))
        assert f"--rocm-path={tmp_path / 'rocm'}" in options
        assert "-nogpuinc" not in options
        assert not any("code-object-version" in option for option in options)

    @pytest.mark.parametrize(
        ("version", "lld", "problem"),
        [
            ("", True, "needs clang 17 or later, and none is in PATH"),
            ("16.0.6", True, "needs clang 17 or later, and none is in PATH"),
            ("19.1.7", False, "has no lld beside it"),
        ],
    )
    def test_without_one_that_will_do_the_error_says_what_to_install(
        self, tmp_path: Path, version: str, lld: bool, problem: str
    ) -> None:
        if version:
            stand_in(tmp_path / "bin", "clang", version, lld=lld)
        with pytest.raises(DeviceError, match=problem) as told:
            HipCompiler("gfx942")
        assert "apt install clang-19 lld-19" in (told.value.remedy or "")
        assert told.value.exit_code == 2

    def test_a_target_that_this_clang_does_not_know(self, tmp_path: Path) -> None:
        stand_in(tmp_path / "bin", "clang-19", "19.1.7")
        with pytest.raises(DeviceError, match=r"^clang 19\.1\.7 does not know gfx950") as told:
            HipCompiler("gfx950")
        assert "install clang 20 or later and its lld" in (told.value.remedy or "")

    def test_an_unknown_target_lists_those_that_are_known(self, tmp_path: Path) -> None:
        stand_in(tmp_path / "bin", "clang-19", "19.1.7")
        with pytest.raises(DeviceError, match="unknown architecture 'gfx1'") as told:
            HipCompiler("gfx1")
        assert all(target in (told.value.remedy or "") for target in AMD_TARGETS)
