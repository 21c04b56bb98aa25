"""Search-space files: what the documentation shows loads, and every mistake has its line."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tuner.model.errors import InputError, KernelError, SpaceError
from tuner.model.kernel import Limits, Operator, Tolerance, Workload
from tuner.model.tensor_maps import TensorMap
from tuner.space.load import Definition, load_definition, workload_from_text
from tuner.space.schema import SpaceModel
from tuner.space.yaml import parse

DOCS = Path(__file__).parents[3] / "docs" / "search-spaces.md"
AROUND = DOCS.with_name("surroundings.md")
COMPLETE, *FRAGMENTS = (
    text
    for page in (DOCS, AROUND)
    for text in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
)


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


MIN_BYTES = "min_bytes: T * K * 2 + T * K * 2 + T * 4\n"


@pytest.mark.parametrize(
    ("old", "new", "bytes_moved"),
    [
        ("role: output", "role: output", 72),
        ("role: output", "role: inout", 104),
        ("fill: normal}\n  - {name: K", "fill: indices(K)}\n  - {name: K", 40),
    ],
)
def test_without_min_bytes_every_array_counts_once_but_no_table(
    folder: Path, old: str, new: str, bytes_moved: int
) -> None:
    text = changed(MIN_BYTES, "").replace(old, new, 1)
    if "indices" in new:
        text = text.replace("float32, shape: [T], role: input", "int32, shape: [T], role: input")
    spec = load(folder, text).spec
    assert spec.min_bytes.integer({"T": 2, "K": 8}) == bytes_moved


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
    shown = {key for text in (COMPLETE, *FRAGMENTS) for key in parse(text, DOCS).data}
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
        changed("    block: [block_size]", "    block: [64, 0x2]\n    pdl: true\n    when: false"),
    ).spec.launch[0]
    assert [size.integer({}) for size in launch.block] == [64, 2]
    assert launch.pdl is not None
    assert launch.pdl.evaluate({}) is True
    assert launch.resolve({"T": 1, "K": 1}) is None


def test_floats_keep_the_value_that_is_written(folder: Path) -> None:
    text = changed("  keep_row: [false, true]", "  keep_row: [1e-3, 5., .5, -2E2]")
    assert load(folder, text).space.parameters[3].values == (1e-3, 5.0, 0.5, -200.0)


def test_configs_take_values_of_the_list_and_suggestions_the_rest_of_the_default(
    folder: Path,
) -> None:
    text = f"""{COMPLETE}
default: {{block_size: 64.0, vector_bytes: 4, rows_per_block: 1, keep_row: false}}
suggestions: [{{block_size: 256.0}}, {{vector_bytes: 8, keep_row: true}}]
"""
    space = load(folder, text).space
    assert [str(config) for config in (space.default, *space.suggestions)] == [
        "block_size=64 vector_bytes=4 rows_per_block=1 keep_row=false",
        "block_size=256 vector_bytes=4 rows_per_block=1 keep_row=false",
        "block_size=64 vector_bytes=8 rows_per_block=1 keep_row=true",
    ]
    assert space.default is not None
    assert type(space.default["block_size"]) is int


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
    error = refusal(folder, text)
    assert message in str(error)
    assert error.line == len(text.splitlines())


def test_commas_inside_parentheses_do_not_end_an_item(folder: Path) -> None:
    text = changed("grid: [T], block: [256]", "grid: [max(T, 1, 2), 1], block: [min(K, 64)]")
    text = text.replace("value: K}", "value: ceil_div(K, 8)}")
    spec = load(folder, text).spec
    assert [size.text for size in spec.baseline[0].grid] == ["max(T, 1, 2)", "1"]
    assert spec.argument("K").value is not None
    assert str(spec.argument("K").value.text) == "ceil_div(K, 8)"  # type: ignore[union-attr]


MISTAKES = YAML(typ="safe", pure=True).load(Path(__file__).with_name("mistakes.yaml"))


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_its_line_and_a_remedy(folder: Path, name: str) -> None:
    old, new = MISTAKES[name]["replace"], MISTAKES[name]["by"]
    text = changed(old, new)
    error = refusal(folder, text)
    assert MISTAKES[name]["message"] in error.message
    assert MISTAKES[name]["remedy"] in str(error.remedy)
    assert error.path == folder / "space.yaml"
    assert error.line == expected_line(name, text, old, new)
    assert error.exit_code == 2


def expected_line(name: str, text: str, old: str, new: str) -> int:
    """The line where the changed text ends is the line of the mistake, with these exceptions."""
    elsewhere = {
        "missing key": "version: 1",
        "argument twice": "{name: y, dtype: bfloat16, shape: [T, K], role: input",
        "no output": "arguments:",
        "output that no launch takes": "  launch: [",
        "scratch of a config for the baseline": "  launch: [",
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
        ("T=1e3,K=1", "not a positive whole number"),
        ("T=٣,K=1", "not a positive whole number"),
        ("T", "'T' is not name=number"),
        ("", "'' is not name=number"),
    ],
)
def test_a_workload_that_does_not_fit_is_told(folder: Path, text: str, found: str) -> None:
    with pytest.raises(KernelError) as caught:
        workload_from_text(load(folder, COMPLETE).spec, text)
    assert found in caught.value.message
    assert caught.value.remedy == "write T=1,K=1, with numbers of your own"


MAPS = COMPLETE.replace("* 2 if keep_row else 0", "* 2 if keep_row else 0\n    maps: [MAP]")


@pytest.mark.parametrize(
    ("tensor_map", "says"),
    [
        ("{of: z, box: [8, 64]}", "`z` is not declared"),
        ("{of: K, box: [8, 64]}", "`K` is a scalar"),
        ("{of: scale, box: [8, 64]}", "`scale` has 1 dimension, and a tensor map 2 or 3"),
        ("{of: x, box: [8, 8, 64]}", "`box` of the map of `x` has 3 sizes"),
        ("{of: x, box: [8, 64], strides: [8, K]}", "`strides` of the map of `x` has 2 sizes"),
        ("{of: x, box: [8]}", "`launch.0..maps.0..box` is a list of 1"),
        ("{of: x, box: [8, 64], wide: 1}", "unknown key `wide` in `launch.0..maps.0.`"),
        ("{of: x, box: [512, 64]}", "the map of `x` has a box of 512 in one dimension"),
        ("{of: x, box: [8, 64], swizzle: 100}", "a `swizzle` of 100"),
        ("{of: x, box: [8, 128], swizzle: 128}", "have 256 bytes, and its swizzle 128"),
        ("{of: x, box: [8, 12]}", "rows of a box in the map of `x` have 24 bytes"),
        ("{of: x, box: [8, 64], l2_promotion: 32}", "an `l2_promotion` of 32"),
        ("{of: x, box: [8, 64], strides: [K + 4]}", "stride of 8,200 bytes on the workload T=1 "),
        ("{of: x, box: [8, 8], shape: [T, K // 2 + 4]}", "stride of 4,104 bytes on the workload"),
        ("{of: x, box: [8, 8], shape: [T + 1, K]}", "reaches over 8,192 elements, and there are 4"),
        ("{of: x, box: [8, 8], shape: [T - 1, K]}", "has a dimension of 0 on the workload T=1"),
    ],
)
def test_a_tensor_map_that_cannot_be_has_its_line(folder: Path, tensor_map: str, says: str) -> None:
    error = refusal(folder, MAPS.replace("MAP", tensor_map))
    assert re.search(says, error.message), error.message
    assert error.line == 1 + next(i for i, line in enumerate(MAPS.splitlines()) if "maps:" in line)
    assert error.remedy


def test_a_tensor_map_goes_by_axes_parameters_and_choices(folder: Path) -> None:
    of_y = "{of: y, shape: [K // 64, T, 64], strides: [64, K], box: [1, rows_per_block, 64]"
    text = MAPS.replace("MAP", f"{of_y}, swizzle: 64 if keep_row else 0}}")
    text = text.replace(
        "{name: y, dtype: bfloat16,", "{name: y, dtype: {QUANT: {fp8: float8_e4m3, int8: int8}},"
    )
    definition = load(folder, f"{text}\noperator: {{QUANT: [fp8, int8]}}\n")
    names = {"T": 5, "K": 192, "rows_per_block": 2, "block_size": 64, "keep_row": True}
    for operators, dtype in (({}, "float8_e4m3"), ({"QUANT": "int8"}, "int8")):
        (launch,) = definition.chosen(operators).spec.candidate_launches(names)
        (one,) = launch.maps
        assert one == TensorMap("y", dtype, 1, (3, 5, 64), (64, 192), (1, 2, 64), 64)


def test_what_a_config_decides_of_a_map_is_no_error_of_the_file(folder: Path) -> None:
    text = MAPS.replace("MAP", "{of: x, box: [rows_per_block, block_size], swizzle: 128}")
    spec = load(folder, text).spec
    names = {"T": 5, "K": 192, "rows_per_block": 2, "keep_row": True}
    assert spec.map_refusal(spec.launch, {**names, "block_size": 64}) == ""
    said = spec.map_refusal(spec.launch, {**names, "block_size": 128})
    assert "have 256 bytes, and its swizzle 128: of bfloat16 the last size is at most 64" in said


def test_an_output_that_only_a_map_reaches_is_taken(folder: Path) -> None:
    arguments = "arguments: [x, scale, K]\n    maps: [{of: y, box: [8, 64]}]"
    text = MAPS.replace("maps: [MAP]", arguments)
    (launch,) = (spec := load(folder, text).spec).launch
    assert [one.name for one in spec.reached(launch)] == ["x", "scale", "K", "y"]
    missing = refusal(folder, text.replace("of: y", "of: x"))
    assert "no launch takes the output `y`" in missing.message
