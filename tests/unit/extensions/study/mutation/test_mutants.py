"""Which mutants are made of which code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.extensions.study.mutation.mutants import Mutant, all_mutants, keep_reached, sample
from tuner.source import parse_source


def mutants_of(statement: str, parameters: str = "float* out, int n") -> tuple[Mutant, ...]:
    text = f"__global__ void k({parameters}) {{\n  {statement}\n}}\n"
    return all_mutants(parse_source(text, Path("k.cu")))


def changes(statement: str, operator: str) -> list[str]:
    found = mutants_of(statement)
    return [m.identity.change for m in found if m.identity.operator == operator]


@pytest.mark.parametrize(
    ("operator", "statement", "expected"),
    [
        ("arithmetic", "out[n % 4] = 1;", ["% -> /", "% -> *"]),
        ("arithmetic", "n = n << 2;", ["<< -> >>"]),
        ("compound", "n += 3;", ["+= -> -=", "+= -> ="]),
        ("compound", "--n;", ["-- -> ++"]),
        ("comparison", "if (n <= 3) n = 1;", ["<= -> <"]),
        ("bound", "if (n < n / 8) n = 1;", ["n / 8 -> (n / 8) - 1"]),
        ("bound", "if (n < 8) n = 1;", []),
        ("logical", "if (n && !out) n = 1;", ["&& -> ||", "! ->"]),
        ("constant", "n = 4;", ["4 -> 5", "4 -> 3", "4 -> 0"]),
        ("constant", "n = 0x10u;", ["0x10u -> 0x11u", "0x10u -> 0xfu", "0x10u -> 0u"]),
        ("constant", "n = 0;", ["0 -> 1"]),
        ("constant", "out[n] = 2.0f;", ["2.0f -> 2.02f", "2.0f -> (-2.0f)"]),
        ("axis", "n = threadIdx.x;", ["threadIdx -> blockIdx", "x -> y"]),
        ("component", "n = v.y;", ["y -> x"]),
        ("condition", "while (n) n = f();", ["n -> !(n)"]),
        ("guard", "if (n < 3) n = 1;", ["n < 3 -> true", "n < 3 -> false"]),
        ("guard", "if constexpr (3 < 4) n = 1;", []),
        ("tail", "for (int i = 0; i < n; i += 2 * n) f();", ["i -> i + (2 * n)"]),
        ("barrier", "__syncthreads();", ["__syncthreads(); -> ;"]),
        ("barrier", "__syncwarp(3);", ["__syncwarp(3); -> ;"]),
        ("statement", "if (n) return;", ["return; -> ;"]),
        ("statement", "f(n);", ["f(n); -> ;"]),
        ("arguments", "f(n, 3, n);", ["n, 3 -> 3, n", "3, n -> n, 3"]),
        ("arguments", "out[0] = fmaxf(n, 3);", []),
        ("cast", "out[0] = static_cast<float>(n);", ["static_cast<float>(n) -> (n)"]),
        ("cast", "out[0] = (float)n;", ["(float)n -> (n)"]),
        ("narrowed", "size_t i = n;", ["size_t -> int"]),
        ("narrowed", "double d = n;", ["double -> float"]),
        ("narrowed", "float f = n;", ["n -> __half2float(__float2half(n))"]),
    ],
)
def test_an_operator_makes_these_changes(operator: str, statement: str, expected) -> None:
    assert changes(statement, operator) == expected


def test_a_shuffle_gets_other_lanes_another_distance_and_direction() -> None:
    assert changes("n += __shfl_down_sync(0xffffffff, n, 4);", "shuffle") == [
        "__shfl_down_sync -> __shfl_up_sync",
        "0xffffffff -> 0xffffu",
        "4 -> 4 + 1",
    ]


def test_rounding_uses_the_header_that_the_source_includes_or_brings_its_own() -> None:
    kernel = "#include <cuda_bf16.h>\n__global__ void k(float* o) { float a = o[0] * 2; }\n"
    source = parse_source(kernel, Path("k.cu"))
    (found,) = [m for m in all_mutants(source) if m.identity.operator == "narrowed"]
    assert "__bfloat162float(__float2bfloat16(o[0] * 2))" in found.apply(kernel)
    (other,) = [m for m in mutants_of("float f = n;") if m.identity.operator == "narrowed"]
    assert other.apply("").startswith("#include <cuda_fp16.h>\n#line 1\n")


@pytest.mark.parametrize(
    "statement",
    [
        "// n = n + 1;",
        "/* n < 3 */",
        'printf("%d + 1 < 2");',
        'static_assert(sizeof(int) == 4, "");',
        'asm volatile("add %0, 1;" : "+r"(n + 1));',
        "#pragma unroll 4",
        "const char* __restrict__ p;",
        "alignas(16) char c;",
    ],
)
def test_what_is_no_code_of_the_kernel_is_left_alone(statement: str) -> None:
    assert [m for m in mutants_of(statement) if m.identity.operator != "statement"] == []


def test_launch_bounds_and_template_defaults_are_left_alone() -> None:
    text = "template <int N = 4>\n__global__ void __launch_bounds__(256, 2) k(float* out) {}\n"
    assert all_mutants(parse_source(text, Path("k.cu"))) == ()


def test_only_code_that_the_launches_reach_is_mutated() -> None:
    text = (
        "__device__ int used(int n) { return n + 1; }\n"
        "__device__ int other(int n) { return n - 1; }\n"
        "__global__ void k(int* out) { out[0] = used(3); }\n"
        "__global__ void second(int* out) { out[0] = other(4); }\n"
        "int main() { return 1 + 1; }\n"
    )
    source = parse_source(text, Path("k.cu"))
    assert {m.line for m in keep_reached(all_mutants(source), source, ["k"], {})} == {1, 3}


def test_a_macro_from_outside_leads_to_what_it_stands_for() -> None:
    text = (
        "#ifndef STEP\n#define STEP first\n#endif\n"
        "__device__ int first(int n) { return n + 1; }\n"
        "__device__ int second(int n) { return n - 1; }\n"
        "__global__ void k(int* out) { out[0] = STEP(3); }\n"
    )
    source = parse_source(text, Path("k.cu"))
    mutants = all_mutants(source)
    assert {m.line for m in keep_reached(mutants, source, ["k"], {"STEP": "second"})} == {5, 6}
    assert {m.line for m in keep_reached(mutants, source, ["k"], {"STEP": "first"})} == {4, 6}


def test_a_configs_own_values_are_no_code_of_the_templates() -> None:
    text = "constexpr int kBlock = 256;\n__global__ void k(int* out) { out[kBlock] = n; }\n"
    source = parse_source(text, Path("k.cu"))
    assert [m.line for m in all_mutants(source, rendered=True)] == [2]
    assert {m.line for m in all_mutants(source)} == {1, 2}


def test_the_same_text_is_made_once() -> None:
    text = "__global__ void k(int* out, int n) { for (int i = 0; i < n; i += 1) out[i] = n - 1; }\n"
    found = all_mutants(parse_source(text, Path("k.cu")))
    texts = [m.apply(text) for m in found]
    assert len(set(texts)) == len(texts)


def test_an_identity_stays_when_lines_move_and_comments_change() -> None:
    text = "__global__ void k(int* out, int n) {\n  out[n + 1] = n + 1;\n}\n"
    moved = f"// above\n\n{text.replace('= n + 1;', '= n + 1;  // below')}"
    identities = [m.identity for m in all_mutants(parse_source(text, Path("k.cu")))]
    assert len(set(identities)) == len(identities)
    assert [m.identity for m in all_mutants(parse_source(moved, Path("k.cu")))] == identities


def test_a_mutant_knows_its_place_and_shows_its_diff() -> None:
    text = "__global__ void k(int* out, int n) {\n  out[n] = n * 3;\n}\n"
    (found,) = [
        m for m in all_mutants(parse_source(text, Path("k.cu"))) if m.identity.change == "* -> /"
    ]
    assert (found.line, found.column, found.before, found.after) == (2, 14, "*", "/")
    assert found.diff(text, "k.cu").splitlines()[3:6] == [
        " __global__ void k(int* out, int n) {",
        "-  out[n] = n * 3;",
        "+  out[n] = n / 3;",
    ]


def test_a_sample_is_spread_evenly_and_the_same_for_a_seed() -> None:
    found = mutants_of("n = n + n * 3 - 4; n += 5; out[n] = n / 7; n = n % 9;")
    chosen = sample(found, 5, seed=1)
    assert chosen == sample(found, 5, seed=1)
    assert len(set(chosen)) == 5
    positions = [found.index(mutant) for mutant in chosen]
    assert [position * 5 // len(found) for position in positions] == [0, 1, 2, 3, 4]
    assert sample(found, None, seed=1) == sample(found, len(found), seed=1) == found
