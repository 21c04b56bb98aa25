"""Templates render to CUDA line by line, in a sandbox that nothing gets out of."""

from __future__ import annotations

import re
from pathlib import Path
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from tuner.model.config import Parameter, SearchSpace
from tuner.model.errors import InputError, TemplateError
from tuner.model.expressions import Expression, Value
from tuner.model.kernel import KernelSpec, LaunchSpec, Operator
from tuner.space.template import Rendered, Template, map_errors

PATH = Path("scale_rows.cu.j2")
DOCS = Path(__file__).parents[3] / "docs" / "templates.md"
EXAMPLES = re.findall(r"```cuda\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
CONFIG: dict[str, Value] = {"block_size": 256, "vector_bytes": 16, "keep_row": True, "unroll": 4}


def render(text: str, **names: Value) -> str:
    return Template.from_text(text, PATH).render(names).source


def lines(text: str, **names: Value) -> list[tuple[int, str]]:
    rendered = Template.from_text(text, PATH).render(names)
    found = rendered.source.split("\n")
    if not found[-1]:
        found.pop()
    return list(zip(rendered.lines, found, strict=True))


def refusal(text: str, **names: Value) -> TemplateError:
    with pytest.raises(TemplateError) as caught:
        Template.from_text(text, PATH).render(names)
    return caught.value


@pytest.mark.parametrize("text", EXAMPLES)
def test_the_examples_of_the_documentation_render(text: str) -> None:
    template = Template.from_text(text, PATH)
    assert template.uses <= set(CONFIG)
    source = template.render(CONFIG).source
    assert "@{" not in source
    assert "//%" not in source


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("int x = @{ n }@;\n", "int x = 8;\n"),
        ("int x = @{ n }@;", "int x = 8;"),
        ("@{ flag }@ @{ not flag }@ @{ n == 8 }@", "true false true"),
        ("@{ share }@ @{ n / 2 }@ @{ n // 3 }@ @{ 2 ** 5 }@", "0.5 4.0 2 32"),
        ("@{ 'a' ~ n ~ 'b' }@ @{ word + '_t' }@", "a8b half_t"),
        ("@{ max(n, 3) }@ @{ min(n, 3) }@ @{ abs(-n) }@ @{ ceil_div(n, 3) }@", "8 3 8 3"),
        ("@{ [1, n]|join(', ') }@ @{ word|upper }@ @{ 2.6|round }@", "1, 8 HALF 3"),
        ("@{ [2, 4][n // 8] }@", "4"),
        ("a\n//% if flag\nb\n//% else\nc\n//% endif\nd\n", "a\nb\nd\n"),
        ("a\n  /*% if not flag %*/\nb\n  /*% endif %*/\nc\n", "a\nc\n"),
        (
            "//% for i in range(3)\n@{ i }@@{ ',' if not loop.last else '' }@\n//% endfor\n",
            "0,\n1,\n2\n",
        ),
        ("a /*# gone #*/b", "a b"),
        ('int a[] = {{0}}; asm("{%0, %1}"); {#x}\n', None),
        ("/*% raw %*/@{ x }@/*% endraw %*/", "@{ x }@"),
        ("// % no statement\nx = a //% b\n;", None),
        ("a\r\nb\r\n", "a\nb\n"),
    ],
)
def test_a_template_renders_to_cuda(text: str, source: str | None) -> None:
    names: dict[str, Value] = {"n": 8, "flag": True, "share": 0.5, "word": "half"}
    assert render(text, **names) == (text if source is None else source)


def test_every_line_knows_where_it_came_from() -> None:
    text = (
        "first\n"  # 1
        "//% macro pair(n)\n"
        "left @{ n }@\n"  # 3
        "right\n"
        "//% endmacro\n"
        "//% for i in range(2)\n"
        "@{ i }@ starts with a value\n"  # 7
        "//% if i == 1\n"
        "  only once\n"  # 9
        "//% endif\n"
        "//% endfor\n"
        "/*% if flag %*/\n"
        "inside\n"  # 13
        "/*% endif %*/\n"
        "@{ pair(1) }@\n"  # 15
        "/*# a comment\n"
        "of two lines #*/\n"
        "v = @{ several }@;\n"  # 18
        "w = @{ [1,\n"
        "  2]|join(',') }@;\n"
        "last"  # 21
    )
    assert lines(text, flag=True, several="p\nq") == [
        (1, "first"),
        (7, "0 starts with a value"),
        (7, "1 starts with a value"),
        (9, "  only once"),
        (13, "inside"),
        (3, "left 1"),
        (4, "right"),
        (15, ""),
        (18, "v = p"),
        (18, "q;"),
        (19, "w = 1,2;"),
        (21, "last"),
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "//% macro two()\na\nb\n//% endmacro\n//% set kept = two()\n"
            "@{ kept|length }@ @{ kept == 'a\\nb\\n' }@ @{ two()|upper }@",
            [(6, "4 true A"), (6, "B")],
        ),
        (
            "//% macro inner(i)\ninner @{ i }@\n//% endmacro\n"
            "//% macro outer()\n//% for i in range(2)\n@{ inner(i) }@\n//% endfor\n"
            "//% endmacro\n@{ outer() }@end\n",
            [(2, "inner 0"), (6, ""), (2, "inner 1"), (6, ""), (9, "end")],
        ),
    ],
    ids=["kept as text", "macro in a macro"],
)
def test_what_a_macro_writes_has_its_lines(text: str, found: list[tuple[int, str]]) -> None:
    assert lines(text) == found


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "text {n}",
                "",
                "  //% if a\nyes {n}\n//% endif",
                "/*% if b %*/\nno\n/*% endif %*/",
                "//% for i in range(2)\nrow {n}\n//% endfor",
                "x @{ 1 }@ {n}",
                "/*# c\nc #*/",
                "  /*%- if a -%*/\n  tight {n}\n /*%- endif %*/",
                "@{ '' }@tail {n}",
            ]
        ),
        max_size=8,
    )
)
def test_a_line_of_text_comes_from_the_line_that_has_it(parts: list[str]) -> None:
    text = "\n".join(part.replace("{n}", f"#{i}#") for i, part in enumerate(parts))
    origin = text.split("\n")
    for line, found in lines(text, a=True, b=False):
        if marks := re.findall("#[0-9]+#", found):
            assert marks[0] in origin[line - 1]


LONG = "x" * 60_000


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        *YAML(typ="safe").load(Path(__file__).with_name("template_mistakes.yaml")),
        ("@{ " + "(" * 500 + "1" + ")" * 500 + " }@", 1, "nested too deeply"),
        ("//% for i in [1]\n" * 30 + "//% endfor\n" * 30, 1, "nested too deeply"),
    ],
)
def test_a_mistake_is_told_with_its_line(text: str, line: int, found: str) -> None:
    error = refusal(text, n=1)
    assert found in error.message
    assert str(error).startswith(f"{PATH}:{line}: ")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("@{ 'x' * 1000000000 }@", "* needs two numbers"),
        ("@{ '%1000000000d' % 1 }@", "% needs two numbers"),
        ("@{ 2 ** 99 }@", "too large"),
        ("//% macro f(n, x)\n@{ f(n - 1, x * x) }@\n//% endmacro\n@{ f(50, 9) }@", "too large"),
        ("@{ 1|round(-1000000000) }@", "0 to 15 digits"),
        ("//% for i in range(100000)\n//% endfor", "a range of 100000, over 4096"),
        ("//% for i in range(4000)\n//% for j in range(99)\n//% endfor\n//% endfor", "over 50000"),
        ("//% set r = range(4000)|join\n" * 20, "over 50000"),
        ("@{ range(4000)|join('" + "x" * 4000 + "') }@", "over 1000000"),
        ("//% for i in range(4000)\n//% set r = range(4000)|max\n//% endfor", "over 1000000"),
        ("//% macro f(n)\n@{ f(n) }@\n//% endmacro\n@{ f(1) }@", "calls itself without end"),
        ("//% macro f(n)\n//% if n\n@{ f(n-1) }@@{ f(n-1) }@\n//% endif\n//% endmacro\n@{ f(60) }@",
         "over 50000"),
        ("//% macro d(s)\n@{ s }@@{ s }@\n//% endmacro\n@{ " + "d(" * 40 + "'x'" + ")" * 40 + " }@",
         "over 1000000 characters"),
        ("//% set x = 'aaaaaaaaaa'\n" + "//% set x = x ~ x ~ x ~ x\n" * 30, "over 1000000"),
        ("//% set x = 'aaaaaaaaaa'\n" + "//% set x = x + x\n" * 30, "over 1000000"),
        (f"//% for i in range(100)\n{LONG}\n//% endfor", "over 1000000"),
        (f"//% macro f()\n//% for i in range(4000)\n{LONG}\n//% endfor\n//% endmacro\n"
         "//% set y = f()", "over 1000000"),
    ],
)  # fmt: skip
def test_work_is_bounded(text: str, found: str) -> None:
    started = perf_counter()
    error = refusal(text)
    assert found in error.message
    assert perf_counter() - started < 20


def expression(text: str) -> Expression:
    return Expression.parse(text)


def kernel_spec(*, launch: str = "1") -> KernelSpec:
    here = Path("space.yaml")
    block = LaunchSpec("f", (expression("T"),), (expression("64"),), expression(launch))
    return KernelSpec(
        name="f",
        path=here,
        source=here,
        reference=here,
        template=PATH,
        axes=("T", "K"),
        arguments=(),
        tuned=(),
        held_out=(),
        min_bytes=expression("T"),
        baseline=(block,),
        launch=(block,),
        tolerances={},
        operators=(Operator("ACTIVATION", ("silu",)),),
    )


def search_space(*names: str) -> SearchSpace:
    return SearchSpace(tuple(Parameter(n, (1, 2), line=10 + i) for i, n in enumerate(names)))


def check(text: str, *names: str, launch: str = "1") -> None:
    Template.from_text(text, PATH).check(search_space(*names), kernel_spec(launch=launch))


@pytest.mark.parametrize(
    ("text", "launch"),
    [
        ("@{ rows }@ @{ K }@ @{ ACTIVATION }@ @{ max(T, 1) }@", "1"),
        ("//% macro f(x)\n@{ x }@\n//% endmacro\n//% set y = rows\n//% for z in range(y)\n"
         "@{ f(z) }@ @{ loop.index }@\n//% endfor", "1"),
        ("", "rows * 4"),
    ],
    ids=["axes and macros", "its own names", "only a launch"],
)  # fmt: skip
def test_a_template_may_use_what_is_declared_and_its_own_names(text: str, launch: str) -> None:
    check(text, "rows", launch=launch)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "@{ rows }@\n\n@{ colums }@",
            f"{PATH}:3: `colums` is not declared\n  declare it under `parameters` in space.yaml; "
            "declared: ACTIVATION, K, T, columns, rows",
        ),
        (
            "@{ rows }@ {{ columns }}",
            "space.yaml:11: the parameter `columns` changes nothing: neither scale_rows.cu.j2 "
            "nor a launch uses it\n  write @{ columns }@ in the template, or delete it here",
        ),
    ],
    ids=["undeclared", "unused"],
)
def test_a_name_that_only_one_side_knows_is_told_with_its_line(text: str, told: str) -> None:
    with pytest.raises(TemplateError) as caught:
        check(text, "rows", "columns")
    assert str(caught.value) == told


@pytest.mark.parametrize(
    "text", ["\n//% set rows = 3\n@{ rows }@", "\n//% macro rows()\n//% endmacro"]
)
def test_a_template_sets_no_declared_name(text: str) -> None:
    with pytest.raises(TemplateError, match=r"`rows` is declared in space\.yaml and set") as caught:
        check(text, "rows")
    assert caught.value.line == 2


def test_a_template_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "k.cu.j2"
    path.write_bytes("\ufeffint a = @{ n }@; // ünder\n".encode())
    assert Template.load(path).render({"n": 1}).source == "int a = 1; // ünder\n"
    path.write_bytes(b"a\nb\xe9\n")
    with pytest.raises(TemplateError, match="not UTF-8 text") as caught:
        Template.load(path)
    assert caught.value.line == 2
    for wrong, message in (
        (tmp_path / "nope.j2", "no such template"),
        (tmp_path, "cannot be read"),
    ):
        with pytest.raises(TemplateError, match=message):
            Template.load(wrong)


def test_a_value_with_a_control_character_is_refused() -> None:
    with pytest.raises(InputError, match="the value of `n` has a control character"):
        render("@{ n }@", n="\x02")


def test_renderings_do_not_share_a_budget() -> None:
    template = Template.from_text("//% for i in range(4000)\nx\n//% endfor\n", PATH)
    sources = {template.render({}).source for _ in range(20)}
    assert len(sources) == 1


RENDERED = Rendered("a\nb\nc\n", (4, 10, 12))


@pytest.mark.parametrize(("line", "found"), [(0, 4), (1, 4), (2, 10), (3, 12), (4, 12), (99, 12)])
def test_a_line_past_the_end_belongs_to_the_last(line: int, found: int) -> None:
    assert RENDERED.template_line(line) == found
    assert Rendered("", ()).template_line(line) == 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('kernel.cu(2): error: identifier "x"', 'k.j2:10: error: identifier "x"'),
        ("kernel.cu(3): warning #177-D: unused", "k.j2:12: warning #177-D: unused"),
        ("kernel.cu(1): catastrophic error: no", "k.j2:4: catastrophic error: no"),
        ("kernel.cu:2:7: error: clang's way", "k.j2:10: error: clang's way"),
        ("/build/kernel.cu(2): error: x", "k.j2:10: error: x"),
        ("other_kernel.cu(2): error: x", "other_kernel.cu(2): error: x"),
        ("cuda_bf16.h(2): error: x", "cuda_bf16.h(2): error: x"),
        ('1 error detected in the compilation of "kernel.cu".',
         '1 error detected in the compilation of "k.j2".'),
        ('At end of source: error: expected a "}"', 'At end of source: error: expected a "}"'),
        ("    p[0] = kernel.cu(2);", "    p[0] = kernel.cu(2);"),
        ("", ""),
    ],
)  # fmt: skip
def test_compiler_messages_name_the_template(text: str, found: str) -> None:
    assert map_errors(text, RENDERED, Path("k.j2"), unit="kernel.cu") == found


def test_the_trace_of_an_instantiation_is_mapped_too() -> None:
    text = (
        "unit.cu(1): error: static assertion failed\n"
        '    instantiation of class "A<N>" at line 2\n'
        "h.h(7): error: static assertion failed\n"
        '    instantiation of class "A<N>" at line 2\n'
        '    instantiation of class "B<N>" at line 3 of unit.cu\n'
    )
    assert map_errors(text, RENDERED, Path("k.j2"), unit="unit.cu") == (
        "k.j2:4: error: static assertion failed\n"
        '    instantiation of class "A<N>" at k.j2:10\n'
        "h.h(7): error: static assertion failed\n"
        '    instantiation of class "A<N>" at line 2\n'
        '    instantiation of class "B<N>" at k.j2:12\n'
    )


def test_the_compilers_own_errors_reach_the_template() -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    text = (
        "//% for i in range(n)\n"
        "__device__ int f@{ i }@() { return @{ i }@; }\n"
        "//% endfor\n"
        "//% if n > 1\n"
        "__global__ void k(int* p) { p[0] = missing; }\n"  # 5
        "//% endif\n"
    )
    rendered = Template.from_text(text, PATH).render({"n": 3})
    _, program = nvrtc.nvrtcCreateProgram(rendered.source.encode(), b"kernel.cu", 0, [], [])
    nvrtc.nvrtcCompileProgram(program, 0, [])
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = b" " * size  # the binding writes into it
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(program)
    mapped = map_errors(log.decode(), rendered, PATH, unit="kernel.cu")
    assert mapped.startswith('scale_rows.cu.j2:5: error: identifier "missing" is undefined')
