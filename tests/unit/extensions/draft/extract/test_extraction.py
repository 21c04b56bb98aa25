"""Production sources of several styles: extracted, each into one unit that NVRTC compiles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from shutil import copy

import pytest
from click.testing import CliRunner

from tuner.cli import cli
from tuner.compiler.base import CompileRequest
from tuner.compiler.cache import Cache
from tuner.compiler.pool import NvrtcPool
from tuner.extensions.draft.drafting import Asked, draft_source
from tuner.extensions.draft.extract.extraction import Extraction, Wanted, extract
from tuner.extensions.draft.extract.failures import failure
from tuner.extensions.draft.extract.project import siblings
from tuner.model.errors import KernelError

DATA = Path(__file__).parent / "data"
NEWER = ("--std=c++20",)
CALM = "jit/csrc/shore/calm.cuh"
CALM_ASKED = {"instantiate": ("calm_waves<4096, true, brain_t>",)}
# where kernels are not to be found from the source alone
ASKED: dict[str, dict[str, tuple[str, ...]]] = {
    # cub, and numbers of a launcher that a macro calls in a switch
    "aot/csrc/pebbles/flattest_pebbles.cu": {"kernels": ("flattest_pebble", "rough_heap")},
    # compiled at run time: a struct as parameter, concepts
    CALM: CALM_ASKED,
    # the kernel in a header in nested namespaces, specialisations in another
    "library/src/add_residual.cu": {"instantiate": ("add_residual_kernel<library::bf16, 4>",)},
    # a kernel that a macro makes
    "macros/kinks.cu": {"kernels": ("gutter_flow",)},
}
# sources, and the kernels as launches of the unit name them
STYLES: dict[str, tuple[str, ...]] = {
    # a functor as template argument, types from the project's dispatch macro
    "aot/csrc/sheets/crease.cu": ("crease::fold_panels<nv_bfloat16, crease::knoll>",),
    # two kernels that one function launches
    "aot/csrc/strata/level_strata_fp8.cu": (
        "level_by_warps<nv_bfloat16, __nv_fp8_e4m3, kStrataPerBlock, 16>",
        "level_by_blocks<nv_bfloat16, __nv_fp8_e4m3, 8>",
    ),
    # kernels in the order of their launches, one through a variable
    "aot/csrc/banquet/seat_guests.cu": ("lay_tables<int32_t>", "take_heads<int32_t>"),
    # a launch in a macro, the type from the function's caller
    "aot/csrc/weaving/twine.cu": ("twine_ropes<__nv_bfloat16, 128>",),
    "aot/csrc/pebbles/flattest_pebbles.cu": (
        "flattest_pebble<__nv_bfloat16, 8, 64, 4, 16>",
        "rough_heap<256>",
    ),
    CALM: ("calm_waves<4096, true, brain_t>",),
    # pybind, AT_DISPATCH, macros of PyTorch
    "pybind/scale_shift.cu": ("scale_shift_kernel<__nv_bfloat16>",),
    "library/src/add_residual.cu": (
        "library::kernels::add_residual_kernel<library::bf16, 4, library::Rounding::kNearest>",
    ),
    "macros/kinks.cu": ("gutter_flow",),
    # cudaLaunchKernelEx in a lambda, C++'s library in device code
    "stream/clamp.cu": ("ops::clamp_kernel<float, 4>",),
}


@pytest.fixture(scope="module")
def pool() -> Iterator[NvrtcPool]:
    with NvrtcPool(1, cache=Cache()) as compiler:
        yield compiler


def extracted(name: str, **asked: tuple[str, ...]) -> Extraction:
    return extract(DATA / name, Path("unit.cu"), Wanted(**asked))  # type: ignore[arg-type]


def error_of(pool: NvrtcPool, unit: Extraction, options: tuple[str, ...] = ()) -> str:
    return pool.submit(CompileRequest(unit.unit, unit.names, "sm_90a", options)).result().error


@pytest.mark.parametrize("name", STYLES)
def test_the_unit_compiles_and_holds_nothing_of_a_framework(pool: NvrtcPool, name: str) -> None:
    unit = extracted(name, **ASKED.get(name, {}))
    assert unit.names == STYLES[name]
    assert not error_of(pool, unit, NEWER if name.startswith("jit") else ())
    for foreign in ("torch", "at::", "c10", "TORCH_", "tvm", "pybind", "<<<", "cudaStream_t"):
        assert foreign not in unit.unit
    assert "#line" not in unit.unit
    assert Path(name).name in unit.unit.splitlines()[0]


def test_what_is_left_out_has_its_place_and_reason() -> None:
    left = [text.removeprefix(f"{DATA}/") for text in extracted("pybind/scale_shift.cu").left_out]
    headers = next(text for text in left if "#include <ATen/Dispatch.h>, " in text)
    assert headers.startswith("pybind/scale_shift.cu:1: ")
    assert headers.endswith(": of a framework")
    assert "pybind/scale_shift.cu:27: function scale_shift: host code" in left
    assert "pybind/scale_shift.cu:41: PYBIND11_MODULE: host code" in left


def test_only_what_a_kernel_needs_is_taken_of_a_header() -> None:
    unit = extracted("aot/csrc/sheets/crease.cu").unit
    assert "struct alignas(sizeof(Yarn) * COUNT) Skein" in unit
    assert "glimpsed" not in unit
    assert "reach_of_block" not in unit
    # all specialisations come along, and the one functor of the instantiation
    assert unit.count(" spun<") == 4
    assert "Yarn knoll(" in unit
    assert "Yarn pleat(" not in unit


def test_branches_for_other_hardware_are_gone_and_those_for_an_architecture_stay() -> None:
    strata = extracted("aot/csrc/strata/level_strata_fp8.cu").unit
    assert "fnuz" not in strata
    assert "240.0f" not in strata
    calm = extracted(CALM, **CALM_ASKED).unit
    assert "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900" in calm


def test_host_functions_of_a_class_are_taken_out_of_it() -> None:
    asked = ("add_residual_kernel<library::bf16, 4>",)
    unit = extracted("library/src/add_residual.cu", instantiate=asked).unit
    assert "struct Traits<bf16>" in unit
    assert "narrow" in unit
    assert "check" not in unit
    assert "struct Shape" not in unit


def test_a_struct_becomes_parameters_and_a_void_pointer_gets_its_type() -> None:
    unit = extracted(CALM, **CALM_ASKED)
    parameters = [p.declaration for p in unit.source.kernel("calm_waves").parameters]
    assert parameters == [
        *("const Water* waves", "const Water* shore", "Water* calmed", "int64_t waves_apart"),
        *("int64_t calmed_apart", "uint32_t num_waves", "float drag"),
    ]
    assert unit.source.launches[0].arguments[-2:] == ("num_waves", "drag")


def test_where_members_names_are_free_the_kernel_has_the_struct_and_lines_know_their_places() -> (
    None
):
    unit = extracted("stream/clamp.cu")
    assert "  Limits limits{low, high};" in unit.unit
    assert "_body" not in unit.unit
    source = (DATA / "stream/clamp.cu").read_text().splitlines()
    lines = unit.source.text.splitlines()
    known = [(line, place) for line, place in zip(lines, unit.places, strict=False) if place]
    known = [(line, place) for line, place in known if place[0].name == "clamp.cu"]
    same = sum(source[number - 1].rstrip() == line for line, (_, number) in known)
    # all but the lines of the opened struct
    assert len(known) - same == 2 + 1
    launch = unit.places[unit.source.launches[0].line - 1]
    assert launch is not None
    assert "cudaLaunchKernelEx" in source[launch[1] - 1]


def test_the_launch_is_of_the_instantiation() -> None:
    site = extracted("aot/csrc/weaving/twine.cu").source.launches[0]
    assert site.template_arguments == ("__nv_bfloat16", "NUM_THREADS")
    assert site.definitions["NUM_THREADS"] == "128"
    assert site.definitions["hand"] == "16 / sizeof(__nv_bfloat16)"


def test_names_that_no_file_defines_are_told_with_place_and_remedy(pool: NvrtcPool) -> None:
    for name, what, line, remedy in (
        ("framework", "'cutlass'", 5, r"#include <cutlass/numeric_conversion\.h>"),
        ("macro", "'FOR_EACH_ELEMENT' (by its name a macro)", 4, ""),
        ("missing", "'rows'", 6, r'#include "rows\.cuh".*--include DIR'),
    ):
        unit = extracted(f"bad/{name}.cu")
        told = failure(unit, error_of(pool, unit))
        assert (told.message.split(" is ")[0], told.line) == (what, line)
        assert re.search(remedy, told.remedy or "")


@pytest.mark.parametrize(
    ("header", "row", "told"),
    [
        ("torch/extension.h", "x[0] = 1", 'does not compile: expected a ";"'),
        ("torch/extension.h", "at::Tensor y;", "PyTorch, of #include <torch/extension.h>"),
        ("cutlass/array.h", "x[0] = curandom(0);", "a name of cuRAND, and not one of those"),
        ("cutlass/array.h", "cute::copy(x, x);", "CUTLASS, of #include <cutlass/array.h>"),
    ],
)
def test_what_does_not_compile_is_told_in_the_source_and_in_the_unit_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: str, row: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"#include <{header}>\n\n__global__ void k(float* x) {{\n  {row}\n}}\n"
    Path("k.cu").write_text(f"{text}void run(float* x) {{ k<<<1, 1>>>(x); }}\n")
    error = CliRunner().invoke(cli, ["init", "k.cu"], prog_name="tune")
    assert told in error.output
    place = re.search(r"this is line (\d+) of kernels/k.cu, the unit to mend", error.output)
    assert place is not None
    line = Path("kernels/k.cu").read_text().splitlines()[int(place[1]) - 1]
    own = re.search(r"k\.cu:(\d+): ", error.output)
    assert own is not None
    assert text.splitlines()[int(own[1]) - 1] == line
    assert line in (f"  {row}", "}")


def test_a_missing_header_is_found_in_a_folder_that_is_given(tmp_path: Path) -> None:
    (tmp_path / "rows.cuh").write_text(
        "#pragma once\nnamespace rows {\n"
        "__device__ inline int index() { return blockIdx.x * blockDim.x + threadIdx.x; }\n}\n"
    )
    unit = extract(DATA / "bad/missing.cu", Path("unit.cu"), Wanted(folders=(tmp_path,)))
    assert "__device__ inline int index()" in unit.unit


@pytest.mark.parametrize(
    ("name", "asked", "line", "message", "remedy"),
    [
        ("no_kernel.cu", {}, None, "has no __global__ function", "the file that defines"),
        ("header_kernel.cu", {}, 1, '#include "kernels_elsewhere.cuh"', "--include DIR"),
        ("several.cu", {}, None, "has 2 kernels", "--kernel first"),
        ("several.cu", {"kernels": ("frist",)}, None, "named 'frist'", "did you mean 'first'"),
        ("functor.cu", {}, 3, "typename Op", '"each<YOUR_Op>"'),
        ("template.cu", {"instantiate": ("scale<float>",)}, 4, "takes 2", "--instantiate"),
        ("template.cu", {"instantiate": ("scale",)}, None, "no instantiation",
         "<__nv_bfloat16, 8>"),
        ("template.cu", {"instantiate": ("scale<float, 1>",) * 2}, None, "twice", "one of them"),
        ("several.cu", {"instantiate": ("first<int>",)}, 3, "is no template", "--kernel first"),
        ("circle/start.cu", {}, 2, "in a circle: a.h:1 -> b.h:2 -> a.h", "#pragma once"),
        ("nowhere.cu", {}, None, "no such file", "path"),
    ],
)  # fmt: skip
def test_what_cannot_be_extracted_is_one_error(
    name: str, asked: dict[str, tuple[str, ...]], line: int | None, message: str, remedy: str
) -> None:
    with pytest.raises(KernelError) as told:
        extracted(f"bad/{name}", **asked)
    assert message in told.value.message
    assert remedy in (told.value.remedy or "")
    if line is not None:
        assert abs((told.value.line or 0) - line) <= 1
    assert told.value.exit_code == 2


KERNEL = "template <typename T, int N> __global__ void k(T* x) { x[N] = 1; }\n"


def written(folder: Path, host: str, kernel: str = KERNEL) -> Extraction:
    return unit_of(folder, kernel + host)


def unit_of(folder: Path, text: str, *instantiate: str) -> Extraction:
    path = folder / "source.cu"
    path.write_text(text)
    return extract(path, folder / "unit.cu", Wanted(instantiate=instantiate))


def of_framework(name: str) -> str:
    return (DATA / f"frameworks/{name}.cu").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "host",
    [
        "void run(float* x) { k<float, 8><<<1, 1>>>(x); }",
        "void run(float* x) { auto f = &k<float, 8>; f<<<1, 1>>>(x); }",
        "void run(float* x) { constexpr int v = 32 / sizeof(float); k<float, v><<<1, 1>>>(x); }",
        "template <typename U, int V = 8> void go(U* x) { k<U, 8><<<1, 1>>>(x); }\n"
        "void run(float* x) { go<float>(x); }",
        "template <typename U, int V> void go(U* x) { k<U, V><<<1, 1>>>(x); }\n"
        "void run(float* x) { const int two = 2; go<float, two * 4>(x); }",
        "template <int V> struct Go { static void run(float* x) { k<float, V><<<1, 1>>>(x); } };\n"
        "void run(float* x) { Go<8>::run(x); }",
        "#define LAUNCH(V) k<float, V><<<1, 1>>>(x)\nvoid run(float* x) { LAUNCH(8); }",
        "void run(float* x) {\n#define LAUNCH(V) k<float, V><<<1, 1>>>(x)\n  LAUNCH(8);\n}",
        "#define VECS(V, ...) { constexpr int vec = V; __VA_ARGS__(); }\n"
        "void run(float* x) { VECS(8, [&] { k<float, vec><<<1, 1>>>(x); }) }",
        "using real = float;\nvoid run(real* x) { k<real, 8><<<1, 1>>>(x); }",
        # what calls pass says the type
        "template <typename U> void go(U* x) { k<U, 8><<<1, 1>>>(x); }\n"
        "void run(void* x) { go(static_cast<float*>(x)); }",
        # a helper that launches what it is handed, and a lambda that does
        "template <typename K, typename... A> void launch(K kernel, dim3 g, dim3 b, A&&... a)\n"
        "{ cudaLaunchConfig_t c; c.gridDim = g; c.blockDim = b;"
        " cudaLaunchKernelEx(&c, kernel, std::forward<A>(a)...); }\n"
        "void run(float* x) { launch(k<float, 8>, 1, 32, x); }",
        "void run(float* x) { auto go = [&](auto kernel) { kernel<<<1, 1>>>(x); };"
        " go(k<float, 8>); }",
    ],
)  # fmt: skip
def test_an_instantiation_is_found_on_the_way_of_the_launch(tmp_path: Path, host: str) -> None:
    assert written(tmp_path, host + "\n").names == ("k<float, 8>",)


def test_of_several_types_bfloat16_comes_first_and_the_others_are_named(tmp_path: Path) -> None:
    host = (
        "void run(at::Tensor x) { AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, "
        'x.scalar_type(), "k", [&] { k<scalar_t, 4><<<1, 1>>>(x.data_ptr<scalar_t>()); }); }\n'
    )
    (instance,) = written(tmp_path, host).instances
    assert instance.name == "k<__nv_bfloat16, 4>"
    assert instance.others == ("k<__half, 4>", "k<float, 4>", "k<double, 4>")


CASES = " ".join(f"AT_DISPATCH_CASE(at::k{name}, __VA_ARGS__)" for name in ("Float", "BFloat16"))
LAUNCH = "[&] { k<scalar_t, 4><<<1, 1>>>(x.data_ptr<scalar_t>()); }"


@pytest.mark.parametrize(
    "host",
    [
        f"#define CASES(...) {CASES}\n#define EACH(T, N, ...)"
        f' AT_DISPATCH_SWITCH(T, N, CASES(__VA_ARGS__))\nDO EACH(x.type(), "k", {LAUNCH}); }}',
        f'DO AT_DISPATCH_SWITCH(x.type(), "k", AT_DISPATCH_CASE(at::kFloat, {LAUNCH})\n'
        f"AT_DISPATCH_CASE(at::kBFloat16, {LAUNCH})); }}",
        f'DO AT_DISPATCH_V2(x.type(), "k", AT_WRAP({LAUNCH}), at::kFloat, at::kBFloat16); }}',
        f"#define GO AT_DISPATCH_CASE(at::kFloat, {LAUNCH})"
        f" AT_DISPATCH_CASE(at::kBFloat16, {LAUNCH})"
        '\nDO AT_DISPATCH_SWITCH(x.type(), "k", GO); }',
    ],
)
def test_types_are_those_that_a_switch_of_cases_gives(tmp_path: Path, host: str) -> None:
    (instance,) = written(
        tmp_path, host.replace("DO ", "void run(at::Tensor x) { ") + "\n"
    ).instances
    assert instance.name == "k<__nv_bfloat16, 4>"
    assert set(instance.others) <= {"k<float, 4>"}


def test_a_switch_gives_its_number_to_what_it_switches_on(tmp_path: Path) -> None:
    host = (
        "#define VECS(v, V, ...)"
        " switch (v) { case 8: { constexpr int V = 8; __VA_ARGS__ break; } }\n"
        "void run(float* x, int d) { int vec = std::gcd(4, d); int threads = d / vec;"
        " VECS(vec, VEC, { k<float, VEC><<<1, threads>>>(x); }) }\n"
    )
    site = written(tmp_path, host).source.launches[0]
    assert (site.template_arguments, site.definitions["threads"]) == (("float", "8"), "d / 8")


def test_the_launch_may_be_in_a_file_beside_and_so_may_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "k.cuh").write_text("#pragma once\n" + KERNEL)
    (tmp_path / "other.cu").write_text("void other() {}\n")
    launch = "void f(float* x) { k<float, 8><<<2, 64>>>(x); }"
    (tmp_path / "run.cu").write_text(f'#include "k.cuh"\n{launch}\n')
    unit = extract(tmp_path / "k.cuh", tmp_path / "unit.cu")
    assert (unit.names, unit.source.launches[0].block) == (("k<float, 8>",), ("64",))
    (tmp_path / "one.cu").write_text("__global__ void one(float* x) { x[0] = 1; }\n")
    launch = "void f(float* x) { one<<<1, 32>>>(x); }"
    (tmp_path / "go.cu").write_text(f"__global__ void one(float* x);\n{launch}\n")
    assert extract(tmp_path / "go.cu", tmp_path / "unit.cu").names == ("one",)


def test_a_copy_of_a_kernel_beside_it_is_none_of_its_launchers(tmp_path: Path) -> None:
    alone = (
        "// Its launch is the engine's.\nconstexpr int kN = 1;\n__global__ void one(float* x) {}\n"
    )
    copied = f"{alone}void f(float* x) {{ one<<<1, 32>>>(x); }}\n"
    for text in (alone, copied):
        for name in ("mine.cu", "older/kernel.cu"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        assert siblings(tmp_path / "mine.cu", ()) == ()
    caller = tmp_path / "caller.cu"
    caller.write_text("__global__ void one(float*);\nvoid g(float* x) { one<<<1, 32>>>(x); }\n")
    assert siblings(tmp_path / "mine.cu", ()) == (caller,)


@pytest.mark.parametrize("asked", ["k<float, 8>", "fp32, 8", "k<fp32, 8>"])
def test_an_instantiation_may_be_asked_for_in_short(tmp_path: Path, asked: str) -> None:
    assert unit_of(tmp_path, KERNEL, asked).names == ("k<float, 8>",)


def test_a_type_may_be_told_by_what_is_passed(tmp_path: Path) -> None:
    kernel = "template <typename T> __global__ void k(T* x) {}\n"
    host = "void f(at::Tensor x) { k<<<1, 1>>>(reinterpret_cast<__nv_bfloat16*>(x.data_ptr())); }"
    assert written(tmp_path, host, kernel).names == ("k<__nv_bfloat16>",)


PAGE = Path(__file__).parents[5] / "docs" / "drafts.md"


def test_the_example_in_the_page_on_drafts_is_what_tune_init_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Production sources")[2]
    found = re.search(r"```cuda\n(.*?)```.*?```text\n(.*?)```", section, re.DOTALL)
    assert found is not None
    (tmp_path / "csrc").mkdir()
    (tmp_path / "include").mkdir()
    (tmp_path / "csrc/scale.cu").write_text(found[1])
    copy(DATA / "page/pack.cuh", tmp_path / "include")
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(cli, ["init", "csrc/scale.cu"], prog_name="tune")
    assert told.exit_code == 0, told.output
    assert told.stdout.startswith(found[2])


def test_lambdas_host_constructors_and_messages_are_as_nvrtc_takes_them(
    pool: NvrtcPool, tmp_path: Path
) -> None:
    unit = unit_of(tmp_path, of_framework("capturing"))
    assert not error_of(pool, unit)
    assert "__host__ __device__ Divided(int by)" in unit.unit
    assert "auto scaled = [&](T value)" in unit.unit
    assert "/* What a kernel gets of a row." in unit.unit


@pytest.mark.parametrize(
    ("kernel", "macro"), [("twice_kernel", "ENABLE_FAST"), ("thrice_kernel", "ENABLE_WIDE")]
)
def test_a_macro_that_guards_what_a_kernel_needs_is_taken_as_defined(
    pool: NvrtcPool, tmp_path: Path, kernel: str, macro: str
) -> None:
    path = tmp_path / "guarded.cu"
    path.write_text(of_framework("guarded"))
    made = draft_source(path, tmp_path, Asked((kernel,)), compiler=lambda: pool)
    assert f"{macro} is taken as defined: the kernel needs it" in made.notes


def test_a_macro_may_open_and_close_namespaces(pool: NvrtcPool, tmp_path: Path) -> None:
    unit = unit_of(tmp_path, of_framework("namespaces"))
    assert unit.names == ("ops::twice_kernel",)
    assert not error_of(pool, unit)


def test_members_take_the_place_of_a_struct_and_variables_of_their_names_give_way(
    pool: NvrtcPool, tmp_path: Path
) -> None:
    unit = unit_of(tmp_path, of_framework("struct"))
    declared = [p.declaration for p in unit.source.kernel("copy_rows").parameters]
    assert declared == ["T* out", "const T* in", "int rows", "int cols"]
    assert "T* out_ = reinterpret_cast<T*>(out);" in unit.unit
    assert "out_[blockIdx.x * cols + c] = in_[blockIdx.x * cols + c];" in unit.unit
    assert "args" not in unit.unit.partition("__global__")[2]
    assert not error_of(pool, unit)


def test_a_macro_may_make_the_explicit_instantiations(tmp_path: Path) -> None:
    text = (
        "template <typename T, typename Id>\n__global__ void rows(T* out, const Id* ids, int n)\n"
        "{ if (threadIdx.x < n) out[threadIdx.x] = T(ids[threadIdx.x]); }\n"
        "template <typename T, typename Id>\nvoid run(T* out, const Id* ids, int n)\n"
        "{ rows<T, Id><<<1, 64>>>(out, ids, n); }\n"
        "#define RUN_FOR(T, ID) \\\n  template void run<T, ID>(T* out, const ID* ids, int n);\n"
        "RUN_FOR(float, int64_t)\nRUN_FOR(__half, int64_t)\n#undef RUN_FOR\n"
    )
    (instance,) = unit_of(tmp_path, text).instances
    assert (instance.arguments, instance.guessed) == (("__half", "int64_t"), ())


def test_a_vector_of_cudas_own_becomes_a_number_for_each_member(tmp_path: Path) -> None:
    text = (
        "__global__ void k(float* y, const int2 range = make_int2(0, 4), /* why */\n"
        "                  uint3 by = {1, 2, 3}, int n = 4) {\n  // what\n"
        "  if (threadIdx.x < n) y[threadIdx.x] = by.z + range.x;\n}\n"
        "void f(float* y, int a, int n) { k<<<n, 128>>>(y, make_int2(a, 0), split(n), n); }\n"
    )
    unit = unit_of(tmp_path, text)
    declared = [one.declaration for one in unit.source.kernel("k").parameters]
    assert declared[1:4] == ["int range_x", "int range_y", "unsigned int by_x"]
    assert "  int2 range = {range_x, range_y};\n" in unit.unit
    assert unit.source.launches[0].arguments == (
        ("y", "a", "0", "by.by_x", "by.by_y", "by.by_z", "n")
    )


def test_an_argument_may_be_named_by_types_and_constants_around_the_launch(
    pool: NvrtcPool, tmp_path: Path
) -> None:
    unit = unit_of(tmp_path, of_framework("widths"))
    assert unit.is_stated
    assert unit.instances[0].arguments[3:] == (
        "gate::turn<typename gate::Pair<float>::Type>",
        "gate::detail::Widths<float, 16>::kWidth",
    )
    assert pool.submit(CompileRequest(unit.unit, unit.names, "sm_90a")).result().ok


def test_a_traits_class_may_be_an_alias_in_the_function_that_launches(tmp_path: Path) -> None:
    text = (
        "template <int N, bool FULL, typename T> struct Kit { using type = T; };\n"
        "template <typename Kit_t>\n__global__ void scan(typename Kit_t::type* x) { x[0] = 1; }\n"
        "template <int N, typename T>\nvoid run(T* x) {\n  constexpr bool FULL = true;\n"
        "  using Own = Kit<N, FULL, T>;\n  auto kernel = &scan<Own>;\n"
        "  kernel<<<1, N>>>(x);\n}\n"
        "template void run<64, float>(float* x);\n"
    )
    assert unit_of(tmp_path, text).names == ("scan<Kit<64, true, float>>",)


def test_what_runs_is_the_specialisation_for_the_arguments(tmp_path: Path) -> None:
    text = (
        "#include <cuda_fp16.h>\n"
        "template <typename T>\n__global__ void norm(T* x, int cols) { x[cols] = 1; }\n"
        "template <>\n__global__ void norm<__half>(__half* x, int pairs) {\n"
        "  reinterpret_cast<half2*>(x)[pairs] = half2{}; }\n"
        "void f(float* x, int n) { norm<float><<<1, 32>>>(x, n); }\n"
        "void h(__half* x, int n) { norm<__half><<<1, 32>>>(x, n / 2); }\n"
    )
    kernels = {
        asked: unit_of(tmp_path, text, asked).source.kernel("norm")
        for asked in ("norm<__half>", "norm<float>")
    }
    assert {asked: k.parameters[1].name for asked, k in kernels.items()} == {
        "norm<__half>": "pairs",
        "norm<float>": "cols",
    }
    assert all(kernel.parameters_known for kernel in kernels.values())


def test_a_header_goes_by_what_its_includer_has_before_it(tmp_path: Path) -> None:
    (tmp_path / "blocks.h").write_text("#pragma once\nstruct Packed { int q[4]; };\n")
    (tmp_path / "unpack.cuh").write_text(
        "__global__ void unpack(const Packed* p, int* y) { y[threadIdx.x] = p->q[threadIdx.x]; }\n"
        "static void run(const Packed* p, int* y) { unpack<<<1, 4>>>(p, y); }\n"
    )
    (tmp_path / "all.cuh").write_text('#pragma once\n#include "unpack.cuh"\n')
    (tmp_path / "op.cu").write_text('#include "blocks.h"\n#include "all.cuh"\n')
    alone = extract(tmp_path / "unpack.cuh", tmp_path / "unit.cu")
    assert alone.is_stated and "struct Packed" not in alone.unit
    unit = extract(tmp_path / "unpack.cuh", tmp_path / "unit.cu", Wanted(around=True)).unit
    assert unit.index("struct Packed") < unit.index("void unpack(")


def test_a_list_of_template_arguments_may_be_one_argument_of_a_macro(tmp_path: Path) -> None:
    text = (
        "template <typename T, int N>\n__global__ void route(T* x) { x[0] = N; }\n"
        "#define LIST(...) __VA_ARGS__\n"
        "#define RUN(types, threads) route<types><<<1, threads>>>(x)\n"
        "#define RUN_OF(N) RUN(LIST(float, N), 64)\n"
        "void run(float* x) { RUN_OF(8); }\n"
    )
    assert unit_of(tmp_path, text).names == ("route<float, 8>",)


def test_a_macro_may_launch_through_another(tmp_path: Path) -> None:
    text = (
        "template <int N>\n__global__ void add(float* x) { x[threadIdx.x] += N; }\n"
        "#define ADD(N, T) add<N><<<grid, T>>>(x)\n"
        "#define ADD_OR_NOT(N, T) \\\n  if (some) { \\\n    ADD(N, T); \\\n  }\n"
        "void run(float* x, bool some, int grid) { ADD_OR_NOT(4, 128); }\n"
    )
    unit = unit_of(tmp_path, text)
    assert unit.instances[0].arguments == ("4",)
    assert unit.source.launches[0].block == ("128",)


def test_of_overloaded_kernels_the_first_is_drafted_and_the_others_are_told(
    tmp_path: Path, pool: NvrtcPool
) -> None:
    text = (
        "__global__ void twice(const float* x, float* y) { *y = 2 * *x; }\n"
        "__global__ void twice(const half* x, half* y) { *y = __hadd(*x, *x); }\n"
        "template <typename T> void run(const T* x, T* y) { twice<<<1, 64>>>(x, y); }\n"
        "template void run<half>(const half* x, half* y);\n"
    )
    unit = unit_of(tmp_path, text)
    assert error_of(pool, unit) == ""
    assert f"{tmp_path}/source.cu:2: kernel twice: an overload for other arguments" in unit.left_out
