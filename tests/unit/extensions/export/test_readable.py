"""A variant as somebody reads it: what goes, what stays, and that it means the same."""

from __future__ import annotations

import pytest
from operator_sessions import OPERATORS, choices, write_operator_session
from slow import mostly_slow

from tuner.compiler.base import CompileRequest
from tuner.compiler.pool import NvrtcPool
from tuner.extensions.export.pull_request.kernel import list_code
from tuner.extensions.export.pull_request.readable import readable
from tuner.extensions.export.winners import winners_of


def body(text: str, **macros: str) -> str:
    """Give what is left of a kernel's body, and of what stands before it."""
    head, _, kernel = readable(text, macros).partition("extern")
    return head + kernel.partition("{\n")[2].rpartition("}")[0]


def kernel(lines: str, before: str = "") -> str:
    indented = "".join(f"  {line}\n" for line in lines.splitlines())
    return f'{before}\nextern "C" __global__ void f(float* x, int n) {{\n{indented}}}\n'


@pytest.mark.parametrize(
    ("before", "lines", "left"),
    [
        ("constexpr bool kA = false;", "if constexpr (kA) {\n  x[0] = 1;\n}", ""),
        (
            "constexpr bool kA = false;",
            "if constexpr (kA) {\n  x[0] = 1;\n} else {\n  x[0] = 2;\n}",
            "  x[0] = 2;\n",
        ),
        ("constexpr int kA = 4;", "x[0] = kA > 2 ? n : 0;", "  x[0] = n;\n"),
        ("constexpr bool kA = true;", "if (kA && n > 1) x[0] = 1;", "  if (n > 1) x[0] = 1;\n"),
        (
            "constexpr int kA = 4;  // how many",
            "for (int i = 0; i < kA; ++i) x[i] = i;",
            "constexpr int kA = 4;  // how many\n  for (int i = 0; i < kA; ++i) x[i] = i;\n",
        ),
        (
            "constexpr int kA = 1;",
            "#pragma unroll\nfor (int i = 0; i < kA; ++i) {\n  x[n + i * n] = 3;\n}",
            "  x[n + 0 * n] = 3;\n",
        ),
        ("", "for (int i = 0; i < n; ++i) {\n  x[0] = 1;\n  break;\n}", None),
    ],
)
def test_what_a_config_decides_is_decided(before: str, lines: str, left: str | None) -> None:
    expected = "  if (0 < n) {\n    x[0] = 1;\n  }\n" if left is None else left
    assert body(kernel(lines, before)).lstrip("\n") == expected


def test_what_nothing_calls_goes_with_its_comment_and_the_others_keep_theirs() -> None:
    before = (
        "// Adds one.\n__device__ float more(float a) { return a + 1; }\n\n"
        "// Takes one.\n__device__ float less(float a) { return a - 1; }\n"
    )
    left = readable(kernel("x[0] = less(x[0]);", before), {})
    assert "// Takes one.\n__device__ float less" in left
    assert "one" not in left.replace("Takes one", "")


def test_arguments_in_inline_ptx_are_used() -> None:
    before = (
        "__device__ void fetch(const void* address, int unused) {\n"
        '  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));\n}\n'
    )
    left = readable(kernel("fetch(x, 3);", before), {})
    assert "void fetch(const void* address) {" in left
    assert "fetch(x);" in left


def test_a_name_with_two_meanings_is_no_constant() -> None:
    lines = "const int a = 1;\nif (n) {\n  const int a = n;\n  if (a == 1) x[0] = 1;\n}"
    assert "if (n == 1)" in body(kernel(lines))


def test_a_choice_of_the_operator_stands_in_the_code() -> None:
    before = "// ACT of x.\n#ifndef ACT\n#define ACT relu\n#endif\n"
    left = readable(kernel("x[0] = ACT(x[0]);", before), {"ACT": "silu"})
    assert "x[0] = silu(x[0]);" in left
    assert "define" not in left
    assert left.startswith("// ACT of x.\n")


# Without dead branches some of their numbers are signed: right, and other machine code. Such are
# refused (test_pull_request.py).
OTHERWISE = {"fused_qk_norm_rope", "gemm_invariant", "gemm_invariant_fp8", "linear_add_rmsnorm"}


@pytest.mark.parametrize(
    "name",
    mostly_slow(
        [one for one in OPERATORS if one not in OTHERWISE],
        ["silu_and_mul"],
        ["rmsnorm", "decode_attention", "moe_sum_reduce"],
    ),
)
def test_of_every_operator_the_machine_code_is_the_same(
    name: str, tmp_path, compiler: NvrtcPool
) -> None:
    winners = winners_of(write_operator_session(tmp_path / "s", name, choices(name)[0]), None, None)
    spec, measured = winners.spec, winners.measured
    options = (*spec.compile_options, *(f"-D{n}={v}" for n, v in measured.operators.items()))
    for variant in winners.dispatch.table.kernels:
        launches = winners.dispatch.applicability(variant).launches
        kernels = tuple(dict.fromkeys(one.kernel for one in launches))
        code = []
        for text in (variant.source, readable(variant.source, measured.operators)):
            request = CompileRequest(
                text, kernels, measured.architecture, options, tuple(map(str, spec.include_dirs))
            )
            result = compiler.submit(request).result()
            assert result.ok, result.error
            code.append(list_code(result.cubin))
        assert code[0] == code[1]
