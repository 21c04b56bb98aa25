"""Production sources as they are: `tune init` extracts and drafts, `tune check` compiles it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from shutil import copytree

import pytest
from click.testing import CliRunner, Result
from ruamel.yaml import YAML
from slow import mostly_slow

from tuner.cli import cli

DATA = Path(__file__).parents[1] / "unit/extensions/draft/extract/data"


STYLES = YAML(typ="safe").load(Path(__file__).with_name("data") / "extraction.yaml")
# a struct as parameter with inputs of its own, and a kernel that a macro makes
QUICK = ("calm", "kinks")
# vectors whose width the source chooses
SAMPLE = ("crease",)
# axes whose numbers no block divides
COUNTS = re.compile(r"\b(count|strata|knots|num_waves): FILL_IN")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    copytree(DATA, tmp_path / "project")
    return tmp_path


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words], prog_name="tune")


def fill_in(space: Path, values: dict[str, str]) -> None:
    lines = []
    for line in space.read_text().splitlines():
        code, mark, comment = line.partition("  # FILL IN")
        if "tuned:" in code:
            # 64 fits every vector, 3 no block
            code = COUNTS.sub(r"\1: 3", code).replace("FILL_IN", "64")
        elif "FILL_IN" in code:
            value = next(value for piece, value in values.items() if piece in code)
            code = code.replace("FILL_IN", value)
        elif "# guessed: a usual number" in line:
            for value in (value for piece, value in values.items() if piece in code):
                code = re.sub(r"value: [^}]+", f"value: {value}", code)
        lines.append(code + mark + comment)
    space.write_text("\n".join(lines) + "\n")


def drafted(here: Path, name: str) -> dict[str, object]:
    style = STYLES[name]
    made = run("init", f"project/{style['source']}", *style.get("words", ()), "--json")
    assert made.exit_code == 0, made.output
    (here / "kernels" / f"{name}.py").write_text(style["reference"])
    fill_in(here / "search_spaces" / f"{name}.yaml", style["filled"])
    found: dict[str, object] = json.loads(made.stdout)
    return found


@pytest.mark.parametrize("name", mostly_slow(STYLES, QUICK, SAMPLE))
def test_a_production_source_is_extracted_drafted_compiled_and_right_on_the_cpu(
    here: Path, name: str
) -> None:
    source = here / "project" / STYLES[name]["source"]
    before = source.read_bytes()
    made = drafted(here, name)
    names: list[str] = made["parameters"]  # type: ignore[assignment]
    assert [one for one in names if one != "min_blocks"] == STYLES[name]["parameters"]
    assert made["left_out"]
    assert f"kernels/{name}.cu" in made["written"]  # type: ignore[operator]
    assert source.read_bytes() == before
    space = here / "search_spaces" / f"{name}.yaml"
    checked = run("check", space, "--sample", "2", "--json")
    assert checked.exit_code == 0, checked.output
    assert {trial["status"] for trial in json.loads(checked.stdout)["sample"]} == {"compiled"}
    words = (
        *("--device", "host", "--no-mutants", "--trials", "2"),
        *("--seed", "1", "--json", "--quiet"),
    )
    done = run(f"kernels/{name}.cu", *words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["trials"]["correct"] >= 2


def test_an_extraction_says_what_it_left_out_and_writes_over_nothing_unasked(here: Path) -> None:
    (here / "kernels").mkdir()
    (here / "kernels/scale_shift.cu").write_text("mine\n")
    refused = run("init", "project/pybind/scale_shift.cu")
    assert refused.exit_code == 2
    assert "kernels/scale_shift.cu: exists already" in refused.output
    assert not (here / "search_spaces").exists()
    made = run("init", "project/pybind/scale_shift.cu", "--force")
    assert made.exit_code == 0
    assert "left out (5):" in made.output
    assert "  project/pybind/scale_shift.cu:27: function scale_shift: host code" in made.output
    assert "instantiation: scale_shift_kernel<__nv_bfloat16>" in made.output
    assert "scale_shift_kernel<__half>" in made.output
    # The source itself is never written over.
    text = (DATA / "pybind/scale_shift.cu").read_text()
    (here / "kernels/scale_shift.cu").write_text(text)
    made = run("init", "kernels/scale_shift.cu", "--force")
    assert made.exit_code == 0, made.output
    assert (here / "kernels/scale_shift.cu").read_text() == text
    assert "wrote kernels/scale_shift_extracted.cu" in made.output


def test_several_launches_are_extracted_and_the_rest_is_said_to_be_done_by_hand(
    here: Path,
) -> None:
    told = run("init", "project/aot/csrc/banquet/seat_guests.cu")
    assert told.exit_code == 0
    assert [path.name for path in (here / "kernels").iterdir()] == ["seat_guests.cu"]
    assert not (here / "search_spaces").exists()
    assert "2 kernels make this operator" in told.output
    assert "launch 1: lay_tables<int32_t>; grid 2; block waiters" in told.output
    assert "(project/aot/csrc/banquet/seat_guests.cu:66)" in told.output


def test_a_source_that_cannot_be_extracted_or_compiled_is_one_error(here: Path) -> None:
    told = run("init", "project/bad/missing.cu")
    assert told.exit_code == 2
    assert "missing.cu:6: 'rows' is defined in no file" in told.output
    assert '"rows.cuh"' in told.output
    assert [one.name for one in (here / "kernels").iterdir()] == ["missing.cu"], "left to be mended"
    told = run("init", "project/bad/several.cu")
    assert "several.cu: has 2 kernels" in told.output
    assert "several.cu:3: first" in told.output
    plain = here / "plain.cu"
    plain.write_text("__global__ void plain(float* x) {\n  x[0] = nobody;\n}\n")
    told = run("init", plain)
    assert told.exit_code == 2
    assert "plain.cu:2:" in told.output
    assert "nobody" in told.output
    assert not (here / "search_spaces").exists()


def test_a_plain_source_is_drafted_as_it_is(here: Path) -> None:
    plain = here / "plain.cu"
    plain.write_text("__global__ void plain(float* x) { x[0] *= 2; }\n")
    made = run("init", plain, "--json")
    assert made.exit_code == 0
    assert "left_out" not in json.loads(made.stdout)
    assert not (here / "kernels").exists()
