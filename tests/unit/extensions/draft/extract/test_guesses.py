"""Template arguments that no launch says: guessed as an expert would, and said to be guesses."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tuner.cli import cli
from tuner.extensions.draft.extract.extraction import Extraction, extract
from tuner.model.errors import KernelError


def written(folder: Path, text: str, **more: str) -> Extraction:
    (folder / "source.cu").write_text(text)
    for name, other in more.items():
        (folder / f"{name}.cu").write_text(other)
    return extract(folder / "source.cu", folder / "unit.cu")


BODY = "{ if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x]; }\n"
PLAIN = "(T* y, const T* x, int n) "


@pytest.mark.parametrize(
    ("source", "name"),
    [
        # by what the parameters are for
        ("template <typename scalar_t, typename packed_t, typename acc_t, typename index_t,"
         " bool kGelu>\n__global__ void k(scalar_t* x) {}\n",
         "k<__nv_bfloat16, __nv_bfloat162, float, int, false>"),
        # 16 bytes of what the arrays hold
        ("template <typename T, int VEC_SIZE>\n__global__ void k(T* x) {}\n",
         "k<__nv_bfloat16, 8>"),
        ("template <int VEC>\n__global__ void k(float* x) {}\n", "k<4>"),
        ("template <int THREADS, int HEAD_DIM>\n__global__ void k(float* x) {}\n", "k<256, 128>"),
        # a scalar is no element
        ("template <typename T, typename S>\n__global__ void k(T* x, S by) {}\n",
         "k<__nv_bfloat16, float>"),
        # a value of an enumeration, a functor, a function, a class template of the source
        ("enum class Mode { kFast, kExact };\n"
         "template <Mode MODE>\n__global__ void k(float* x) {}\n", "k<Mode::kFast>"),
        ("struct Off { float by; };\n"
         "struct Twice { __device__ float operator()(float x) const { return 2 * x; } };\n"
         "template <typename Op>\n__global__ void k(float* x, Op op) { x[0] = op(x[0]); }\n",
         "k<Twice>"),
        ("__device__ float halved(float x) { return x / 2; }\n"
         "__device__ float sum(float x, float y) { return x + y; }\n"
         "template <float (*f)(float, float)>\n"
         "__global__ void k(float* x) { x[0] = f(x[0], x[1]); }\n", "k<sum>"),
        ("template <typename T, typename U> struct Both { };\n"
         "template <typename T> struct Silu {" " static __device__ T of(T x) { return x; } };\n"
         "template <template <typename> class Act, typename T>\n"
         "__global__ void k(T* x) { x[0] = Act<T>::of(x[0]); }\n", "k<Silu, __nv_bfloat16>"),
    ],
)  # fmt: skip
def test_what_no_launch_says_is_what_an_expert_would_take(
    tmp_path: Path, source: str, name: str
) -> None:
    (instance,) = written(tmp_path, source).instances
    assert instance.name == name
    assert instance.guessed


def test_a_guess_for_the_launcher_says_what_depends_on_it(tmp_path: Path) -> None:
    unit = written(
        tmp_path,
        f"template <typename T, int N>\n__global__ void k{PLAIN}{BODY}"
        "template <typename T>\nvoid run(T* y, const T* x, int n) {\n"
        "  constexpr int wide = 16 / sizeof(T);\n"
        "  k<T, wide><<<n / wide, 256>>>(y, x, n);\n}\n",
    )
    (instance,) = unit.instances
    assert (instance.name, instance.guessed) == ("k<__nv_bfloat16, 8>", ("T", "N"))
    assert instance.others[:2] == ("k<__half, 8>", "k<float, 4>")


def test_a_caller_in_another_file_is_better_than_a_guess(tmp_path: Path) -> None:
    source = (
        f"template <typename T>\n__global__ void k{PLAIN}{BODY}"
        "template <typename T>\nvoid run_k(T* y, const T* x, int n) { k<T><<<1, n>>>(y, x, n); }\n"
    )
    caller = "void both(float* y, float* x) { run_k<float>(y, x, 8); }\n"
    (instance,) = written(tmp_path, source, caller=caller).instances
    assert (instance.name, instance.guessed) == ("k<float>", ())


@pytest.mark.parametrize("template", ["typename... Ts", "Unknown MODE"])
def test_where_nothing_can_be_guessed_the_error_says_what_to_give(
    tmp_path: Path, template: str
) -> None:
    with pytest.raises(KernelError) as told:
        written(tmp_path, f"template <{template}>\n__global__ void k(float* x) {{}}\n")
    assert "no launch of it" in told.value.message


def test_a_guess_that_does_not_compile_is_followed_by_the_next_and_the_draft_says_guess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("k.cu").write_text(
        "#include <cuda_fp16.h>\n#include <torch/all.h>\n"
        "template <typename T> struct Known;\n"
        "template <> struct Known<__half> {"
        " static __device__ __half of(__half x) { return x; } };\n"
        "template <typename T>\n__global__ void k(T* y, const T* x, int n) {\n"
        "  const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  if (i < n) y[i] = Known<T>::of(x[i]);\n}\n"
        "template <typename T>\nvoid run(T* y, const T* x, int n) {\n"
        "  k<T><<<(n + 255) / 256, 256>>>(y, x, n);\n}\n"
    )
    told = CliRunner().invoke(cli, ["init", "k.cu"], prog_name="tune")
    assert told.exit_code == 0, told.output
    assert "instantiation: k<__half>; T: a guess, for no launch says it" in told.output
    space = Path("search_spaces/k.yaml").read_text()
    assert (
        "{name: y, dtype: float16, shape: [n], role: output}  # guessed: dtype float16: T" in space
    )
    assert "# guessed: T; `tune init --instantiate` takes another" in space
