"""Template arguments that calls do not state: from what they pass, instantiations and defaults."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tuner.extensions.draft.extract.extraction import Extraction, Wanted, extract

KERNEL = "template <typename T, typename U> __global__ void k(T* y, const T* x, U by) {}\n"
LAUNCHER = (
    "template <typename T, typename U = T>\n"
    "void run(T* y, const T* x, U by) { k<<<1, 32>>>(y, x, by); }\n"
)


def written(folder: Path, text: str) -> Extraction:
    (folder / "source.cu").write_text(text)
    return extract(folder / "source.cu", folder / "unit.cu")


def name_of(folder: Path, text: str) -> str:
    (instance,) = written(folder, text).instances
    assert not instance.guessed
    return instance.name


@pytest.mark.parametrize(
    "call",
    [
        # explicit instantiations, one that states its types and one that shows them
        "template void run<__half, float>(__half*, const __half*, float);",
        "template void run(__half* y, __half const* x, float by);",
        # of several macros the one that is defined there
        "#define MAKE(T, U) template void run<T, U>(T * y, const T* x, U by)\n"
        "MAKE(__half, float);\n#undef MAKE\n#define MAKE(T) struct T {}\n",
        # casts, variables, typed pointers, values that are made, literals
        "void f(void* y, void* x) { run((__half*)y, static_cast<const __half*>(x), 1.0f); }",
        "void f(void* a, void* b) { auto* y = reinterpret_cast<__half*>(a); run(y, y + 4, 1.f); }",
        "void f(Tensor y, Tensor x, double by) {"
        " run(y.data_ptr<__half>(), x->DATA_PTR<__half>(), float(by)); }",
        "void f(__half* y, float by) { run(&y[0], y, by); }",
        # a class that is instantiated, whose function launches
        "template <typename V> struct Runner { void go(V* y, const V* x); };\n"
        "template <typename V> void Runner<V>::go(V* y, const V* x) { run(y, x, 1.0f); }\n"
        "template class Runner<__half>;",
        "void f(Buffer y, float by) { const __half* x = y.x(); run<__half>(y.y(), x, by); }",
    ],
)
def test_types_are_those_of_what_is_passed(tmp_path: Path, call: str) -> None:
    assert name_of(tmp_path, f"{KERNEL}{LAUNCHER}{call}\n") == "k<__half, float>"


def test_a_default_follows_the_parameter_that_it_names(tmp_path: Path) -> None:
    source = KERNEL.replace("U by", "const U* by") + LAUNCHER.replace("U by", "const U* by")
    call = "void f(Args a) { run<__half>(a.y, a.x, a.by); }\n"
    assert name_of(tmp_path, source + call) == "k<__half, __half>"


def test_types_are_found_inside_those_of_parameters(tmp_path: Path) -> None:
    source = (
        "template <typename T, typename I> struct View { T* data; const I* rows; int width;\n"
        "  __device__ T* row(int i) { return data + rows[i] * width; } };\n"
        "template <typename T, typename I>\n"
        "__global__ void k(View<T, I> view, int n) { view.row(n)[threadIdx.x] = 0; }\n"
        "template <typename T, typename I>\n"
        "void run(View<T, I> view, int n) { k<T, I><<<n, 32>>>(view, n); }\n"
        "void f(float* data, int64_t* rows) {\n"
        "  View<float, int64_t> view{data, rows, 32};\n  run(view, 4);\n}\n"
    )
    unit = written(tmp_path, source)
    assert unit.names == ("k<float, int64_t>",)
    # and the struct, a template with a function, becomes its members
    parameters = [p.declaration for p in unit.source.kernel("k").parameters]
    assert parameters == ["T* data", "const I* rows", "int width", "int n"]
    assert "View<T, I> view{data, rows, width};" in unit.unit


def test_functions_and_class_templates_are_arguments(tmp_path: Path) -> None:
    source = (
        "template <typename T> __device__ T same(const T& x) { return x; }\n"
        "template <typename T> struct Twice { static __device__ T of(T x) { return x + x; } };\n"
        "template <typename T, T (*f)(const T&), template <typename> class G>\n"
        "__global__ void k(T* x) { x[0] = G<T>::of(f(x[0])); }\n"
        "template <template <typename> class G> void run(float* x) {\n"
        "  k<float, same<float>, G><<<1, 1>>>(x);\n}\n"
        "void f(float* x) { run<Twice>(x); }\n"
    )
    assert name_of(tmp_path, source) == "k<float, same<float>, Twice>"


def test_a_kernel_that_others_launch_is_instantiated_where_it_is_named(tmp_path: Path) -> None:
    source = KERNEL + "template __global__ void k<float, int>(float*, const float*, int);\n"
    assert name_of(tmp_path, source) == "k<float, int>"


def test_what_is_asked_for_stands_for_the_launchers_types_too(tmp_path: Path) -> None:
    (tmp_path / "source.cu").write_text(
        "template <typename V> __global__ void k(V* x, int n) {}\n"
        "template <typename T>\nvoid run(T* x, int n) { k<<<n * sizeof(T), 32>>>(x, n); }\n"
    )
    unit = extract(tmp_path / "source.cu", tmp_path / "unit.cu", Wanted(instantiate=("double",)))
    assert unit.source.launches[0].grid == ("n * sizeof(double)",)


SIZED = """template <typename T, int BLOCK> __global__ void k(T* x, int n) { x[n] = BLOCK; }
template <typename T> void run(T* x, int n) {
  if (n <= 1024) k<T, 128><<<n, 128>>>(x, n);
  else k<T, 256><<<n, 256>>>(x, n);
}
int main() { int n = 4096; float* x; run<float>(x, n); }
"""


@pytest.mark.parametrize(
    ("asked", "block"),
    [((), "256"), (("float, 128",), "128"), (("float, 256",), "256"), (("half, 256",), "256")],
)
def test_an_instantiation_is_launched_as_the_source_launches_it(
    tmp_path: Path, asked: tuple[str, ...], block: str
) -> None:
    (tmp_path / "source.cu").write_text(SIZED)
    unit = extract(tmp_path / "source.cu", tmp_path / "unit.cu", Wanted(instantiate=asked))
    assert unit.instances[0].arguments[1] == block
    assert unit.source.launches[0].block == (block,)


PLAIN = "template <typename T, int N> __global__ void k(T* x) { x[N] = 0; }\n"


@pytest.mark.parametrize(
    "text",
    [
        # a macro that gives a flag a value
        "#define CHOOSE(c, N, ...) if (c) { const int N = 4; __VA_ARGS__ }\n"
        "void f(__half* x, bool c) { CHOOSE(c, N, { k<__half, N><<<1, 1>>>(x); }) }\n",
        # a macro that launches is handed to one that chooses types
        "#define CALL(T, N) k<T, N><<<1, 1>>>(reinterpret_cast<T*>(x));\n"
        "#define BY_TYPE(TYPE, FN) if (TYPE == kHalf) { FN(__half, 4); } else { FN(float, 2); }\n"
        "void f(int type, void* x) { BY_TYPE(type, CALL); }\n",
        # macros over macros over a function that launches
        "template <typename T, int N> void run(T* x) { k<T, N><<<1, 1>>>(x); }\n"
        "#define CALL(T, N) run<T, N>((T*)x);\n"
        "#define CALL_FOUR(T) CALL(T, 4)\n#define CALL_ANY(T) if (n == 4) { CALL_FOUR(T) }\n"
        "void f(int n, void* x) { CALL_ANY(__half) }\n",
        # a macro in lower case, without a semicolon
        "#define make_k(T, n) template __global__ void k<T, n>(T*);\n"
        "make_k(__half, 4)\nmake_k(float, 2)\n",
        'void f(at::Tensor x) { AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.type(), "k", ([&] {'
        " k<scalar_t, 4><<<1, 1>>>(x.data<scalar_t>()); })); }\n",
    ],
)
def test_macros_say_types_however_they_are_nested(tmp_path: Path, text: str) -> None:
    assert name_of(tmp_path, PLAIN + text) == "k<__half, 4>"


def test_a_value_of_cubs_is_known(tmp_path: Path) -> None:
    source = (
        "template <cub::BlockReduceAlgorithm A> __global__ void k(float* x) {}\n"
        "void f(float* x) { k<cub::BLOCK_REDUCE_RAKING><<<1, 1>>>(x); }\n"
    )
    assert name_of(tmp_path, source) == "k<cub::BLOCK_REDUCE_RAKING>"


def test_one_source_of_many_launchers_is_read_in_a_moment(tmp_path: Path) -> None:
    steps = "".join(
        f"template <typename T, int N> void run{n}(T* x) {{"
        f" if (N == {n}) run{n - 1}<T, N>(x); else run{n - 1}<T, N + 1>(x); }}\n"
        for n in range(1, 60)
    )
    source = (
        PLAIN
        + "template <typename T, int N> void run0(T* x) { k<T, N><<<1, 1>>>(x); }\n"
        + steps
        + "void f(__half* x) { run3<__half, 4>(x); }\n"
    )
    start = time.monotonic()
    assert name_of(tmp_path, source).startswith("k<__half, ")
    assert time.monotonic() - start < 5
