"""Arguments against parameters: every real mistake, and no false alarm."""

from __future__ import annotations

from pathlib import Path

import pytest
from operators import REFERENCES, Operator, rows

from tuner.model.errors import KernelError
from tuner.model.expressions import Expression
from tuner.model.kernel import Argument, KernelSpec, Tolerance
from tuner.source import check_arguments, parse_source

YAML = REFERENCES / "k.yaml"


def spec(*arguments: Argument) -> KernelSpec:
    return Operator("k", arguments, Tolerance(), rows(1, 1), ()).spec


def array(name: str, dtype: str, role: str = "input") -> Argument:
    shape = (Expression.parse("n"),)
    return Argument(name, dtype, shape, role=role, line=7)  # type: ignore[arg-type]


def scalar(name: str, dtype: str, value: str = "n") -> Argument:
    return Argument(name, dtype, value=Expression.parse(value), line=7)


def check(parameters: str, *arguments: Argument, before: str = "") -> None:
    source = parse_source(f"{before}\n__global__ void k({parameters}) {{ }}\n", Path("k.cu"))
    check_arguments(spec(*arguments), source.kernels[0])


@pytest.mark.parametrize(
    ("parameters", "arguments", "message"),
    [
        ("int n", (), r"0 arguments, but kernel 'k' \(k.cu:2\) has 1 parameters"),
        ("", (scalar("n", "int32"),), "1 arguments, but kernel 'k' .* has 0 parameters"),
        ("float* x", (scalar("x", "float32"),), "'x' is a scalar: kernel 'k' takes `float. x`"),
        ("float x", (array("x", "float32"),), "'x' is an array"),
        ("half* x", (array("x", "bfloat16"),), "'x' is bfloat16"),
        ("int* x", (array("x", "float32"),), "'x' is float32"),
        ("long long n", (scalar("n", "int32"),), "'n' is int32"),
        ("float a", (scalar("a", "float64"),), "'a' is float64"),
        ("const float* x", (array("x", "float32", "output"),), "'x' has role output"),
        ("float const* x", (array("x", "float32", "inout"),), "'x' has role inout"),
        ("float* y, const float* x", (array("x", "float32"), array("y", "float32", "output")),
         "another order"),
    ],
)  # fmt: skip
def test_a_mismatch_names_the_argument_the_parameter_and_both_places(
    parameters: str, arguments: tuple[Argument, ...], message: str
) -> None:
    with pytest.raises(KernelError, match=message) as info:
        check(parameters, *arguments)
    assert info.value.path == YAML
    assert info.value.line == (7 if arguments else None)
    assert "k.cu:2" in info.value.message
    assert info.value.remedy


@pytest.mark.parametrize(
    ("parameters", "argument"),
    [
        ("const float* __restrict__ x", array("x", "float32")),
        ("float* x", array("another_name", "float32", "output")),
        ("T* x", array("x", "bfloat16")),
        ("Unknown* x", array("x", "float32")),
        ("Params p", scalar("p", "int32")),
        ("void* x", array("x", "float8_e4m3")),
        ("float4* x", array("x", "bfloat16")),
        ("uint8_t* x", array("x", "float8_e4m3")),
        ("unsigned char* x", array("x", "int8")),
        ("unsigned short* x", array("x", "bfloat16", "output")),
        ("bool* x", array("x", "uint8")),
        ("unsigned n", scalar("n", "int32")),
        ("size_t n", scalar("n", "int64")),
        ("bool b", scalar("b", "bool")),
        ("float** xs", array("xs", "uint64")),
        ("const float* bias", scalar("bias", "int64", "0")),
        ("COMMON", array("x", "float32")),
        ("at::Half* x", array("x", "float16")),
        ("real* x", array("x", "bfloat16")),
    ],
)
def test_what_may_be_right_is_accepted(parameters: str, argument: Argument) -> None:
    check(parameters, argument, before="using real = __nv_bfloat16; template <class T>".strip())


def test_an_alias_in_the_file_counts_as_the_type_it_stands_for() -> None:
    with pytest.raises(KernelError, match="'x' is float32"):
        check("real* x", array("x", "float32"), before="using real = __nv_bfloat16;")


def test_overloads_that_differ_are_not_judged() -> None:
    source = parse_source(
        "#if A\n__global__ void k(int n) { }\n#else\n__global__ void k(float* x) { }\n#endif\n",
        Path("k.cu"),
    )
    check_arguments(spec(array("x", "float32")), source.kernel("k"))


@pytest.mark.parametrize(
    ("parameters", "maps", "says"),
    [
        ("float* x, const __grid_constant__ CUtensorMap w", 1, ""),
        ("float* x, const __grid_constant__ tune::TensorMap w", 1, ""),
        ("float* x, __grid_constant__ const Map w", 1, ""),
        ("float* x, const __grid_constant__ CUtensorMap w", 0, "tensor map `w`, and its launch"),
        ("const __grid_constant__ CUtensorMap w, float* x, Map y", 1, "`w` before others"),
        ("float* x, int n", 1, "takes `int n` where its launch has a tensor map"),
        ("float* x", 1, "has 0 parameters before 1 tensor map"),
    ],
)
def test_tensor_maps_are_the_last_parameters(parameters: str, maps: int, says: str) -> None:
    source = parse_source(f"__global__ void k({parameters}) {{ }}\n", Path("k.cu"))
    found = ""
    try:
        check_arguments(spec(array("x", "float32")), source.kernel("k"), maps)
    except KernelError as error:
        found = error.message
        assert error.remedy
    assert says in found
    assert bool(says) is bool(found)
