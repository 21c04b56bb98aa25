"""Search-space files: what the documentation shows loads, and every mistake has its line."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from tuner.model.errors import InputError, KernelError, SpaceError
from tuner.model.kernel import Limits, Operator, Tolerance, Workload
from tuner.space.load import Definition, load_definition, workload_from_text
from tuner.space.yaml import parse

DOCS = Path(__file__).parents[3] / "docs" / "search-spaces.md"
COMPLETE, *FRAGMENTS = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spaces")
    for name in ("scale_rows.cu", "scale_rows.py", "scale_rows.cu.j2"):
        (folder / name).write_text("")
    (folder / "headers").mkdir()
    return folder


def load(folder: Path, text: str) -> Definition:
    path = folder / "space.yaml"
    path.write_text(text, encoding="utf-8")
    return load_definition(path)


def changed(old: str, new: str) -> str:
    assert COMPLETE.count(old) >= 1, f"{old!r} is not in the complete example"
    return COMPLETE.replace(old, new, 1)


def refusal(folder: Path, text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        load(folder, text)
    return caught.value


def test_the_complete_example_says_what_it_declares(folder: Path) -> None:
    definition = load(folder, COMPLETE)
    spec, space = definition.spec, definition.space
    assert (spec.name, spec.axes) == ("scale_rows", ("T", "K"))
    assert spec.source == (folder / "scale_rows.cu").resolve()
    assert [a.name for a in spec.arguments] == ["y", "x", "scale", "K"]
    assert [a.role for a in spec.arguments] == ["output", "input", "input", "input"]
    assert spec.argument("K").is_scalar
    assert spec.argument("y").dimensions({"T": 3, "K": 8}) == (3, 8)
    assert [w.key for w in spec.tuned] == ["T=1,K=4096", "T=1024,K=4096"]
    assert [w.held_out for w in spec.workloads] == [False, False, True]
    assert spec.min_bytes.integer({"T": 2, "K": 8}) == 72
    assert spec.tolerances == {"y": Tolerance(relative=8e-3)}
    assert spec.limits == Limits()
    assert space.size == 4 * 3 * 3 * 2
    assert space.parameters[3].values == (False, True)
    assert (
        space.parameters[0].line
        == COMPLETE.splitlines().index("  block_size: [64, 128, 256, 512]") + 1
    )
    assert space.default is None
    launches = spec.candidate_launches(
        {"T": 5, "K": 8, "rows_per_block": 2, "block_size": 64, "keep_row": True}
    )
    assert (launches[0].grid, launches[0].block) == ((3, 1, 1), (64, 1, 1))
    assert launches[0].shared_bytes == 32


CHOICES = f"{COMPLETE}\noperator: {{QUANT: [fp8, int8], FUSED: [apart, fused]}}\n".replace(
    "{name: y, dtype: bfloat16,", "{name: y, dtype: {QUANT: {fp8: float8_e4m3, int8: int8}},"
).replace("grid: [ceil_div(T, rows_per_block)]", "grid: [\"T if QUANT == 'int8' else 2 * T\"]")


def test_a_choice_of_the_operator_decides_dtypes_expressions_and_constraints(folder: Path) -> None:
    text = CHOICES.replace("vector_bytes // 2) == 0", "vector_bytes // 2) == 0 or FUSED == 'fused'")
    text = text.replace(
        "shape: [T, K], role: input", "shape: [T, \"K if FUSED == 'apart' else 2 * K\"]"
    )
    by_default = load(folder, text)
    other = by_default.chosen({"QUANT": "int8", "FUSED": "fused"})
    config = {"vector_bytes": 16, "rows_per_block": 1, "block_size": 64, "keep_row": False}
    for definition, dtype, width, rows, valid in (
        (by_default, "float8_e4m3", 9, 6, False),
        (other, "int8", 18, 3, True),
        (other.chosen({}), "float8_e4m3", 9, 6, False),
    ):
        spec, names = definition.spec, {"T": 3, "K": 9, **config}
        assert spec.argument("y").dtype == dtype
        assert spec.argument("x").dimensions(names) == (3, width)
        assert spec.candidate_launches(names)[0].grid == (rows, 1, 1)
        assert all(one.evaluate(names) for one in definition.space.constraints) is valid


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("QUANT: {fp8", "OTHER: {fp8", ["`OTHER` is none", "QUANT, FUSED"]),
        (", int8: int8}}", "}}", ["given for fp8", "fp8, int8"]),
        ("int8: int8", "int8: int7", ["`int7` is not a dtype", "`int8`"]),
        ("dtype: {QUANT: {fp8: float8_e4m3, int8: int8}}", "dtype: {QUANT: 3}", ["a mapping"]),
    ],
)
def test_a_dtype_by_choice_that_cannot_be_is_refused(
    folder: Path, old: str, new: str, words: list[str]
) -> None:
    assert old in CHOICES
    error = str(refusal(folder, CHOICES.replace(old, new, 1)))
    assert all(word in error for word in words), error


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=lambda text: text.split(":")[0])
def test_every_fragment_of_the_documentation_is_true(folder: Path, fragment: str) -> None:
    merged = {**parse(COMPLETE, DOCS).data, **parse(fragment, DOCS).data}
    stream = io.StringIO()
    YAML(typ="safe", pure=True).dump(merged, stream)
    load(folder, stream.getvalue())


def test_the_documentation_shows_every_key() -> None:
    from tuner.space.schema import SpaceModel

    shown = set(parse(COMPLETE, DOCS).data)
    for fragment in FRAGMENTS:
        shown |= set(parse(fragment, DOCS).data)
    assert shown == set(SpaceModel.model_fields)


def test_optional_keys_reach_the_spec(folder: Path) -> None:
    text = COMPLETE + (
        "operator: {ACTIVATION: [silu, gelu]}\n"
        "operations: T * K\n"
        "limits: {max_registers: 64, spills: forbid, min_occupancy: 0.5}\n"
        "include: [headers]\n"
        "options: [--use_fast_math, -DROUNDS=2, '-Xptxas=-dlcm=cg']\n"
        "default: {keep_row: true, rows_per_block: 1, vector_bytes: 16, block_size: 64}\n"
    )
    definition = load(folder, text)
    spec = definition.spec
    assert spec.operators == (Operator("ACTIVATION", ("silu", "gelu")),)
    assert spec.limits == Limits(max_registers=64, spills="forbid", min_occupancy=0.5)
    assert spec.include_dirs == ((folder / "headers").resolve(),)
    assert spec.compile_options == ("--use_fast_math", "-DROUNDS=2", "-Xptxas=-dlcm=cg")
    assert str(definition.space.default) == (
        "block_size=64 vector_bytes=16 rows_per_block=1 keep_row=true"
    )


def test_numbers_and_booleans_are_expressions_too(folder: Path) -> None:
    launch = load(
        folder,
        changed(
            "    block: [block_size]",
            "    block: [64, 0x2]\n    pdl: true\n    when: false",
        ),
    ).spec.launch[0]
    assert [size.integer({}) for size in launch.block] == [64, 2]
    assert launch.pdl is not None
    assert launch.pdl.evaluate({}) is True
    assert launch.resolve({"T": 1, "K": 1}) is None


def test_floats_keep_the_value_that_is_written(folder: Path) -> None:
    text = changed("  keep_row: [false, true]", "  keep_row: [1e-3, 5., .5, -2E2]")
    assert load(folder, text).space.parameters[3].values == (1e-3, 5.0, 0.5, -200.0)


def test_the_default_takes_the_values_of_the_list(folder: Path) -> None:
    text = (
        COMPLETE
        + "default: {block_size: 64.0, vector_bytes: 4, rows_per_block: 1, keep_row: false}"
    )
    default = load(folder, text).space.default
    assert default is not None
    assert default["block_size"] == 64
    assert type(default["block_size"]) is int


def test_what_a_suggestion_leaves_out_is_the_defaults(folder: Path) -> None:
    text = (
        COMPLETE
        + "default: {block_size: 64, vector_bytes: 4, rows_per_block: 1, keep_row: false}\n"
        "suggestions: [{block_size: 256.0}, {vector_bytes: 8, keep_row: true}]\n"
    )
    first, second = load(folder, text).space.suggestions
    assert str(first) == "block_size=256 vector_bytes=4 rows_per_block=1 keep_row=false"
    assert str(second) == "block_size=64 vector_bytes=8 rows_per_block=1 keep_row=true"


@pytest.mark.parametrize(
    ("suggestions", "message"),
    [
        ("[{block_size: 256}]", "`suggestions` gives no value for `vector_bytes`"),
        ("[{blocks: 256}]", "`suggestions` has `blocks`, which is not a parameter"),
        (
            "[{block_size: 64, vector_bytes: 5, rows_per_block: 1, keep_row: true}]",
            "`suggestions` has vector_bytes: 5",
        ),
        (
            "[{block_size: 64, vector_bytes: 4, rows_per_block: 4, keep_row: true}]",
            "a suggested config breaks the constraint `block_size % (32 * rows_per_block) == 0`",
        ),
        ("{block_size: 256}", "suggestions"),
    ],
)
def test_a_suggestion_that_cannot_be_is_refused_with_its_line(
    folder: Path, suggestions: str, message: str
) -> None:
    text = f"{COMPLETE}suggestions: {suggestions}\n"
    with pytest.raises(SpaceError) as caught:
        load(folder, text)
    assert message in str(caught.value)
    assert caught.value.line == len(text.splitlines())


def test_commas_inside_parentheses_do_not_end_an_item(folder: Path) -> None:
    text = changed("grid: [T], block: [256]", "grid: [max(T, 1, 2), 1], block: [min(K, 64)]")
    text = text.replace("value: K}", "value: ceil_div(K, 8)}")
    spec = load(folder, text).spec
    assert [size.text for size in spec.baseline[0].grid] == ["max(T, 1, 2)", "1"]
    assert spec.argument("K").value is not None
    assert str(spec.argument("K").value.text) == "ceil_div(K, 8)"  # type: ignore[union-attr]


LAST = "tolerance: {y: {relative: 8.0e-3}}"
# what is replaced, by what, words of the message, words of the remedy
MISTAKES = {
    "repeated key": (LAST, f"{LAST}\naxes: [T]", "the key `axes` is repeated: line 7", "keep one"),
    "repeated key inside": ("role: output}", "role: output, name: z}", "`name` is repeated", "one"),
    "unknown key": ("constraints:", "constraint:", "unknown key `constraint`", "`constraints`?"),
    "renamed key": ("min_bytes:", "traffic:", "unknown key `traffic`", "it is called `min_bytes`"),
    "renamed key of the workloads": (
        "  held_out: [{T: 300, K: 7168}]",
        "  held_out: [{T: 300, K: 7168}]\n  boundary: [{T: 5, K: 8}]",
        "unknown key `boundary` in `workloads`",
        "it is called `edge_cases`",
    ),
    "renamed key of a launch": (
        "    block: [block_size]",
        "    block: [block_size]\n    programmatic: true",
        "unknown key `programmatic` in `launch[0]`",
        "it is called `pdl`",
    ),
    "unknown key inside": (
        "role: output",
        "rol: output",
        "unknown key `rol` in `arguments[0]`",
        "did you mean `role`?",
    ),
    "missing key": ("kernel: scale_rows\n", "", "the key `kernel` is missing", "`scale_rows`"),
    "no value": (
        "min_bytes: T * K * 2 + T * K * 2 + T * 4",
        "min_bytes:",
        "`min_bytes` is empty",
        "fewest bytes",
    ),
    "wrong type": ("axes: [T, K]", "axes: 3", "`axes` is the number 3", "a list of names"),
    "scalar for a list": ("grid: [T]", "grid: T", "is the text 'T'", "a list of 1 to 3"),
    "newer version": ("version: 1", "version: 2", "version 2 is newer", "update tune"),
    "version as text": ("version: 1", "version: '1'", "`version` is the text '1'", "number 1"),
    "version as boolean": ("version: 1", "version: true", "is the boolean true", "number 1"),
    "octal": ("T: 300", "T: 0300", "`0300` is not the same number to every reader", "write 8"),
    "underscores": ("T: 300", "T: 3_00", "`3_00` is not the same number", "write 8"),
    "sexagesimal": ("T: 300", "T: 5:00", "`5:00` is not the same number", "write 8"),
    "infinite": ("8.0e-3", ".inf", "`.inf` is not a finite number", "write 8"),
    "overflow": ("8.0e-3", "1e999", "`1e999` is not a finite number", "write 8"),
    "huge": ("T: 300", "T: 99999999999999999999999", "is too large", "write 8"),
    "float axis": ("T: 300", "T: 3e2", "`workloads.held_out[0].T` is the number 3e2", "whole"),
    "on as a value": (
        "[false, true]",
        "[off, on]",
        "`off` is a text, not a boolean",
        "write false for the boolean, 'off' for the text",
    ),
    "yes as an expression": (
        "    block: [block_size]",
        "    block: [block_size]\n    pdl: Yes",
        "`Yes` is a name here",
        "write true",
    ),
    "tab": ("  block_size:", "\tblock_size:", "a tab in the indentation", "indent with spaces"),
    "anchor": ("axes: [T, K]", "axes: &a [T, K]", "`&a` (an anchor)", "write each value out"),
    "alias": ("axes: [T, K]", "axes: *a", "`*a` (an alias)", "write the value out"),
    "tag": ("axes: [T, K]", "axes: !!set [T, K]", "(a tag) is not allowed", "delete the tag"),
    "merge": (LAST, f"{LAST}\n<<: {{a: 1}}", "`<<` (a merge)", "write the keys out"),
    "document": (LAST, f"{LAST}\n---\na: 1", "a second document", "`---`"),
    "bracket": ("axes: [T, K]", "axes: [T, K", "not YAML", "check brackets"),
    "colon": ("min_bytes: T", "min_bytes: T: 1", "mapping values are not allowed", "in quotes"),
    "backtick": ("min_bytes: T", "min_bytes: `T`", "cannot start any token", "in quotes"),
    "control character": ("axes: [T, K]", "axes: [T, K\u00a0]", "U+00A0 is not printable", "space"),
    "comma in a mapping": (
        "{kernel: scale_rows, grid",
        "{kernel: f<8, true>, grid",
        "unknown key `true>`",
        "quotes",
    ),
    "kernel name": ("kernel: scale_rows\n", "kernel: scale-rows\n", "is not a name", "letters"),
    "missing file": (
        "source: scale_rows.cu",
        "source: nope.cu",
        "'nope.cu' is no such file",
        "starts from the folder",
    ),
    "folder for a file": ("source: scale_rows.cu", "source: headers", "is a folder", "folder"),
    "axis twice": ("axes: [T, K]", "axes: [T, K, T]", "`T` is an axis and was an axis", "another"),
    "axis is a keyword": ("axes: [T, K]", "axes: [T, K, if]", "`if` cannot be an axis", "another"),
    "parameter is an axis": (
        "  keep_row: [",
        "  T: [",
        "`T` is a parameter and was an axis",
        "another",
    ),
    "parameter is a function": ("  keep_row: [", "  max: [", "a word of the language", "another"),
    "parameter is a device number": (
        "  keep_row: [",
        "  warp_size: [",
        "a number of the device",
        "another",
    ),
    "parameter is not a name": ("  keep_row: [", "  keep-row: [", "is not a name", "letters"),
    "no values": ("[false, true]", "[]", "`keep_row` has no values", "at least one"),
    "value twice": (
        "[64, 128, 256, 512]",
        "[64, 128, 64.0]",
        "has 64 and 64.0: the same value",
        "delete one",
    ),
    "booleans and numbers": ("[false, true]", "[1, true]", "mixes booleans", "[false, true]"),
    "number as text": ("[64, 128, 256, 512]", "[64, '64']", "has 64 and '64'", "delete one"),
    "empty value": ("[false, true]", "['', x]", "an empty text", "write a word"),
    "null value": ("[false, true]", "[~, x]", "`parameters.keep_row[0]` is empty", "names"),
    "undefined in a constraint": (
        "block_size % (32",
        "blok_size % (32",
        "undefined name 'blok_size'",
        "known names: K, T, block_size",
    ),
    "argument in a constraint": (
        "block_size % (32",
        "scale % (32",
        "undefined name 'scale'",
        "known names",
    ),
    "call in a constraint": (
        "block_size % (32 * rows_per_block) == 0",
        "open('x') == 0",
        "call to `open` is not allowed",
        "calls to abs",
    ),
    "yaml boolean in an expression": (
        "if keep_row else",
        "if keep_row == true else",
        "undefined name 'true'",
        "True and False",
    ),
    "parameter in the baseline": (
        "block: [256]",
        "block: [block_size]",
        "undefined name 'block_size'",
        "known names: K, T, max_shared",
    ),
    "parameter in a shape": (
        "shape: [T], role",
        "shape: [block_size], role",
        "undefined name 'block_size'",
        "known names: K, T",
    ),
    "dtype": ("dtype: float32", "dtype: float", "`float` is not a dtype", "did you mean `float"),
    "argument twice": ("{name: x,", "{name: y,", "the argument `y` is listed twice", "inout"),
    "shape and value": (
        "value: K}",
        "value: K, shape: [T]}",
        "both a `shape` and a `value`",
        "a scalar has",
    ),
    "neither shape nor value": (", value: K}", "}", "neither a `shape` nor a `value`", "a scalar"),
    "scalar output": (
        "value: K}",
        "value: K, role: output}",
        "the scalar `K` cannot be output",
        "delete the role",
    ),
    "role": ("role: output", "role: out", "`arguments[0].role` is the text 'out'", "inout"),
    "fill of an output": (
        "role: output}",
        "role: output, fill: normal}",
        "nothing fills it",
        "delete `fill`",
    ),
    "no output": ("role: output", "role: input", "no argument is an output", "role: output"),
    "workload without an axis": (
        "{T: 300, K: 7168}",
        "{T: 300}",
        "gives T, and the axes are T, K",
        "every axis",
    ),
    "workload with another axis": (
        "{T: 300, K: 7168}",
        "{T: 300, K: 7168, Z: 1}",
        "gives T, K, Z",
        "every axis",
    ),
    "workload of zero": ("T: 300", "T: 0", "`workloads.held_out[0].T` is the number 0", "whole"),
    "workload twice": ("{T: 1, K: 4096}", "{T: 1024, K: 4096}", "is listed twice", "delete one"),
    "held out and tuned": (
        "{T: 300, K: 7168}",
        "{T: 1, K: 4096}",
        "is listed as tuned",
        "nothing was tuned on",
    ),
    "workload breaks a constraint": (
        "- K % (vector_bytes // 2) == 0",
        "- K % 4096 == 0",
        "breaks the constraint `K % 4096 == 0`",
        "change the",
    ),
    "no traffic": (
        "min_bytes: T * K * 2 + T * K * 2 + T * 4",
        "min_bytes: T - T",
        "`T - T` gives 0",
        "1 or more",
    ),
    "empty shape": ("shape: [T], role", "shape: [T // 2], role", "`T // 2` gives 0", "1 or more"),
    "tolerance of an input": (
        "{y: {relative",
        "{x: {relative",
        "`x` is not an output",
        "outputs: y",
    ),
    "no tolerance": ("{y: {relative: 8.0e-3}}", "{}", "no tolerance for the output `y`", "add"),
    "empty tolerance": ("{relative: 8.0e-3}", "{}", "the tolerance of `y` is empty", "exact"),
    "negative tolerance": ("8.0e-3", "-1", "`tolerance.y.relative` is the number -1", "0 or more"),
    "limit": (LAST, f"{LAST}\nlimits: {{min_occupancy: 50}}", "is the number 50", "from 0 to 1"),
    "spills": (LAST, f"{LAST}\nlimits: {{spills: no}}", "is the text 'no'", "allow or forbid"),
    "default without a parameter": (
        LAST,
        f"{LAST}\ndefault: {{block_size: 64}}",
        "no value for `vector_bytes`",
        "every parameter",
    ),
    "default outside the values": (
        LAST,
        f"{LAST}\ndefault: {{block_size: 65, vector_bytes: 4, rows_per_block: 1, keep_row: false}}",
        "`default` has block_size: 65",
        "64, 128, 256, 512",
    ),
    "default of another type": (
        LAST,
        f"{LAST}\ndefault: {{block_size: 64, vector_bytes: 4, rows_per_block: 1, keep_row: 0}}",
        "`default` has keep_row: 0",
        "false, true",
    ),
    "default with another name": (
        LAST,
        f"{LAST}\ndefault: {{blocks: 64}}",
        "`blocks`, which is not a parameter",
        "parameters: block_size",
    ),
    "default breaks a constraint": (
        LAST,
        f"{LAST}\ndefault: {{block_size: 64, vector_bytes: 4, rows_per_block: 4, keep_row: false}}",
        "breaks the constraint `block_size %",
        "on line",
    ),
    "operator without choices": (LAST, f"{LAST}\noperator: {{ACT: []}}", "no choices", "silu"),
    "operator choice twice": (LAST, f"{LAST}\noperator: {{ACT: [a, a]}}", "`a` twice", "delete"),
    "operator is an axis": (
        LAST,
        f"{LAST}\noperator: {{T: [a]}}",
        "`T` is an operator macro",
        "another",
    ),
    "kernel of a launch": (
        "  - kernel: scale_rows",
        "  - kernel: scale rows",
        "`scale rows` is not a kernel's name",
        "scale_rows<8>",
    ),
    "four dimensions": ("[block_size]", "[1, 1, 1, 1]", "is a list of 4", "1 to 3"),
    "include": (LAST, f"{LAST}\ninclude: [nope]", "'nope' is no folder", "starts from the folder"),
    "option without dash": (LAST, f"{LAST}\noptions: [O3]", "`O3` starts with no -", "-DNAME=1"),
    "option with a folder": (LAST, f"{LAST}\noptions: [-I/usr]", "adds a folder", "`include`"),
    "option with a file": (
        LAST,
        f"{LAST}\noptions: [--pre-include=/etc/passwd]",
        "`--pre-include` is not allowed",
        "allowed: -DNAME=value",
    ),
    "option through ptxas": (
        LAST,
        f"{LAST}\noptions: [-Xptxas=-optf=/etc/passwd]",
        "does not take '-optf=/etc/passwd'",
        "must match",
    ),
    "architecture": (LAST, f"{LAST}\noptions: [-arch=sm_80]", "`-arch` is not allowed", "allowed"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_its_line_and_a_remedy(folder: Path, name: str) -> None:
    old, new, found, remedy = MISTAKES[name]
    text = changed(old, new)
    error = refusal(folder, text)
    assert found in error.message
    assert remedy in str(error.remedy)
    assert error.path == folder / "space.yaml"
    assert error.line == expected_line(name, text, old, new)
    assert error.exit_code == 2


def expected_line(name: str, text: str, old: str, new: str) -> int:
    """The line where the changed text ends is the line of the mistake, with these exceptions."""
    elsewhere = {
        "missing key": "version: 1",
        "argument twice": "{name: y, dtype: bfloat16, shape: [T, K], role: input",
        "no output": "arguments:",
        "workload twice": "  tuned:",
        "workload breaks a constraint": "  held_out:",
    }
    if name in elsewhere:
        return text.count("\n", 0, text.index(elsewhere[name])) + 1
    if name == "document":
        return text[: text.index("---")].count("\n") + 1
    return text.count("\n", 0, COMPLETE.index(old) + len(new.rstrip("\n"))) + 1


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "the file is empty"),
        (b"# only a comment\n", "the file is empty"),
        (b"- a\n- b\n", "is not a mapping"),
        (b"just text", "is not a mapping"),
        (b"version: 1\nkernel: \xff\n", "not UTF-8 text"),
        (b"%YAML 1.1\n---\nversion: 1\n", "a YAML directive"),
        (b"a: [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]\n", "nested more than 16 deep"),
        (b'a: "\\UFFFFFFFF"\n', "not YAML"),
        (b"? [a]\n: b\n", "this key is not a name"),
        (b"a: 1\n" + b"# padding\n" * 100_000, "bytes, over the"),
    ],
)
def test_a_file_that_is_no_search_space_is_told_so(
    tmp_path: Path, content: bytes, found: str
) -> None:
    path = tmp_path / "space.yaml"
    path.write_bytes(content)
    with pytest.raises(SpaceError) as caught:
        load_definition(path)
    assert found in caught.value.message
    assert caught.value.path == path


def test_a_missing_file_and_a_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="no such file"):
        load_definition(tmp_path / "nope.yaml")
    with pytest.raises(SpaceError, match="cannot be read"):
        load_definition(tmp_path)


def test_the_first_of_several_mistakes_is_told_with_the_number_of_the_others(folder: Path) -> None:
    text = changed("axes: [T, K]", "axes: 3").replace("role: output", "rol: output")
    error = refusal(folder, text.replace("tuned:", "tune:"))
    assert error.message == "`axes` is the number 3"
    assert str(error.remedy).endswith("and 2 more in this file")


WORDS = [
    "[",
    "]",
    "{",
    "}",
    ":",
    ": ",
    ",",
    "- ",
    "\n",
    "\n  ",
    "\t",
    "'",
    '"',
    "&a",
    "*a",
    "!!x",
    "|",
    ">",
    "#",
    "---",
    "1e9",
    "-1",
    "true",
    "~",
    "T",
    "é",
    "\u2028",
    "max(",
    ")",
    "?",
]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(COMPLETE)), st.integers(0, 12), st.sampled_from(WORDS)),
        min_size=1,
        max_size=3,
    )
)
def test_any_mutated_file_loads_or_is_refused_with_a_place(
    folder: Path, edits: list[tuple[int, int, str]]
) -> None:
    text = COMPLETE
    for start, length, word in edits:
        text = text[:start] + word + text[start + length :]
    try:
        load(folder, text)
    except InputError as error:
        assert error.path == folder / "space.yaml"
        assert error.line is not None
        assert 1 <= error.line <= text.count("\n") + 2


def test_a_workload_is_read_in_the_order_of_the_axes(folder: Path) -> None:
    spec = load(folder, COMPLETE).spec
    assert workload_from_text(spec, " K=8 , T=3") == Workload((("T", 3), ("K", 8)))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("T=1", "gives no value for K"),
        ("T=1,K=2,Z=3", "no axis is named 'Z'"),
        ("T=1,T=2,K=1", "T is given twice"),
        ("T=0,K=1", "T is '0', not a positive whole number"),
        ("T=-1,K=1", "not a positive whole number"),
        ("T=1.5,K=1", "not a positive whole number"),
        ("T=1e3,K=1", "not a positive whole number"),
        ("T=٣,K=1", "not a positive whole number"),
        ("T=,K=1", "not a positive whole number"),
        ("T", "'T' is not name=number"),
        ("", "'' is not name=number"),
        ("T=1,K=1,", "'' is not name=number"),
    ],
)
def test_a_workload_that_does_not_fit_is_told(folder: Path, text: str, found: str) -> None:
    with pytest.raises(KernelError) as caught:
        workload_from_text(load(folder, COMPLETE).spec, text)
    assert found in caught.value.message
    assert caught.value.remedy == "write T=1,K=1, with numbers of your own"
