"""Drafted files on disk: what is written, what is kept, what is lifted again."""

from __future__ import annotations

from pathlib import Path
from shutil import copy

import pytest

from tuner.extensions.draft.drafting import draft, restore_template, write_draft
from tuner.extensions.draft.space import Drafted
from tuner.model.errors import InputError
from tuner.source import read_source
from tuner.space.load import load_definition

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    copy(DATA / "axpby.cu", tmp_path)
    return Path("axpby.cu")


@pytest.fixture
def complete(kernel: Path) -> Drafted:
    kernel.with_suffix(".py").write_text("def reference(xp, inputs, axes): ...\n")
    return write_draft(draft(read_source(kernel)))


def test_with_a_reference_beside_the_kernel_nothing_is_left_to_fill_in(complete: Drafted) -> None:
    assert (complete.kept, complete.blanks) == ((Path("axpby.py"),), ())
    complete.require_filled("tune check")
    assert load_definition(complete.space).spec.tuned[0].values == {"n": 1 << 18}


CONFIG = "block_size: 256, min_blocks: 0, vec: 1, streaming: 0, items: 1, unroll: 0"
DEFAULT = f"default: {{{CONFIG}}}"


@pytest.mark.parametrize("text", ["import torch\n\ndef axpby(x): ...\n", ""])
def test_a_file_of_the_kernels_name_that_is_no_reference_is_left_alone(
    kernel: Path, text: str
) -> None:
    kernel.with_suffix(".py").write_text(text)
    made = write_draft(draft(read_source(kernel)))
    assert made.space is not None
    assert Path("axpby_reference.py") in made.written
    assert kernel.with_suffix(".py").read_text() == text
    assert 'reference: "../axpby_reference.py"' in made.space.read_text()
    assert "reference() in axpby_reference.py" in Path("axpby_reference.py").read_text()


@pytest.mark.parametrize("text", ["from mine import reference\n", "reference = print\n", "def (\n"])
def test_a_reference_may_be_imported_and_a_broken_one_is_kept(kernel: Path, text: str) -> None:
    kernel.with_suffix(".py").write_text(text)
    assert draft(read_source(kernel)).reference_path == Path("axpby.py")


def test_the_blanks_are_one_error_with_every_line_and_the_next_command(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text("__global__ void k(float* x, float a, int n) { if (n) x[n] = a; }\n")
    made = write_draft(draft(read_source(path), folder=tmp_path))
    with pytest.raises(InputError) as info:
        made.require_filled("tune check k.yaml")
    assert info.value.exit_code == 2
    text = str(info.value)
    assert f"{made.space}:10: the shape of x" in text
    assert f"{path.with_suffix('.py')}:15: the body of reference()" in text
    assert text.splitlines()[-1].strip() == ("fill in what they ask for, then: tune check k.yaml")


def test_a_lost_template_is_lifted_again_as_it_was(complete: Drafted) -> None:
    template = Path("templates/axpby.cu.j2")
    before = template.read_text()
    template.write_text("mine")
    assert restore_template(complete.space) is None
    assert template.read_text() == "mine"
    template.unlink()
    complete.space.write_text(
        complete.space.read_text().replace("[64, 128, 256, 512, 1024]", "[128, 256]")
    )
    restored = restore_template(complete.space)
    assert restored is not None
    assert restored.samefile(template)
    assert template.read_text() == before
    load_definition(complete.space)


@pytest.mark.parametrize(
    "edits",
    [
        {"  block_size: [": "  other: [1]\n  block_size: [", "default: {": "default: {other: 1, "},
        {"{block_size: 256,": "{block_size: 128,"},
        {DEFAULT: ""},
        {"- kernel: axpby": "- kernel: renamed"},
    ],
    ids=["another parameter", "another default", "no default", "a kernel that is not there"],
)
def test_no_template_is_lifted_for_a_space_that_is_another(
    complete: Drafted, edits: dict[str, str]
) -> None:
    text = complete.space.read_text()
    for old, new in edits.items():
        assert old in text
        text = text.replace(old, new)
    complete.space.write_text(text)
    template = Path("templates/axpby.cu.j2")
    template.unlink()
    assert restore_template(complete.space) is None
    assert not template.exists()
