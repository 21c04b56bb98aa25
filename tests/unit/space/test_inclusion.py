"""What a template includes stands in its place, and mistakes name the file they are in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.model.errors import TemplateError
from tuner.space.template import Template, map_errors, put_together

TEMPLATE = '// first\n//% include "words.cuh"\nint last = @{ n }@;\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "include"
    folder.mkdir()
    (folder / "words.cuh").write_text('//% include "warp.cuh"\nint words = @{ n }@;\n')
    (folder / "warp.cuh").write_text("constexpr int kWarp = 32;\n")
    return folder


def written(tmp_path: Path, text: str = TEMPLATE) -> Path:
    path = tmp_path / "t.cu.j2"
    path.write_text(text)
    return path


def test_included_files_stand_in_the_place_of_the_directive(tmp_path: Path, folder: Path) -> None:
    template = Template.load(written(tmp_path), [folder])
    rendered = template.render({"n": 3}).source
    assert rendered == "// first\nconstexpr int kWarp = 32;\nint words = 3;\nint last = 3;\n"
    assert template.text.count("\n") == 4
    assert template.uses == {"n"}


def test_each_is_put_in_once(tmp_path: Path, folder: Path) -> None:
    text = '//% include "warp.cuh"\n  //%include "words.cuh"\n//% include "warp.cuh"\n'
    whole = put_together(text, tmp_path / "t", [folder])
    assert whole.text == "constexpr int kWarp = 32;\nint words = @{ n }@;\n"


def test_a_circle_ends(tmp_path: Path, folder: Path) -> None:
    (folder / "warp.cuh").write_text('//% include "words.cuh"\nint warp;\n')
    whole = put_together('//% include "words.cuh"\n', tmp_path / "t", [folder])
    assert whole.text == "int warp;\nint words = @{ n }@;\n"


def test_a_template_without_one_keeps_its_text(tmp_path: Path) -> None:
    text = 'a\r\n#include "words.cuh"\n\n//% include_me = 1'
    assert put_together(text, tmp_path / "t", []).text == text


def test_what_was_put_together_needs_no_folder(tmp_path: Path, folder: Path) -> None:
    template = Template.load(written(tmp_path), [folder])
    again = Template.from_text(template.text, tmp_path / "elsewhere")
    assert again.render({"n": 3}).source == template.render({"n": 3}).source


def test_the_compilers_messages_name_the_file(tmp_path: Path, folder: Path) -> None:
    template = Template.load(written(tmp_path), [folder])
    text = "kernel.cu(2): error: a\nkernel.cu(3): error: b\nkernel.cu(4): error: c"
    assert map_errors(text, template.render({"n": 3}), template.path, unit="kernel.cu") == (
        f"{folder}/warp.cuh:1: error: a\n"
        f"{folder}/words.cuh:2: error: b\n"
        f"{template.path}:3: error: c"
    )


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("words.cuh", "\n//% if\n", "include/words.cuh:2"),
        ("words.cuh", "\n@{ range( }@\n", "include/words.cuh:2"),
        ("t.cu.j2", '//% include "words.cuh"\n//% endif\n', "t.cu.j2:2"),
    ],
)
def test_mistakes_name_the_file(
    tmp_path: Path, folder: Path, name: str, text: str, place: str
) -> None:
    path = written(tmp_path)
    (path if name == path.name else folder / name).write_text(text)
    with pytest.raises(TemplateError) as caught:
        Template.load(path, [folder])
    assert str(caught.value).startswith(f"{tmp_path}/{place}:")


def test_what_fails_to_render_names_the_file(tmp_path: Path, folder: Path) -> None:
    (folder / "words.cuh").write_text("\nint words = @{ 1 // n }@;\n")
    template = Template.load(written(tmp_path), [folder])
    with pytest.raises(TemplateError, match=r"words\.cuh:2: does not render"):
        template.render({"n": 0})


@pytest.mark.parametrize(
    "name", ["none.cuh", "../t.cu.j2", "/etc/passwd", "out.cuh", ".", "deep/../../t.cu.j2"]
)
def test_only_files_inside_the_folders_can_be_included(
    tmp_path: Path, folder: Path, name: str
) -> None:
    (folder / "out.cuh").symlink_to(written(tmp_path))
    path = written(tmp_path, f'\n//% include "{name}"\n')
    with pytest.raises(TemplateError, match=r"no file .* to include") as caught:
        Template.load(path, [folder])
    assert caught.value.line == 2


@pytest.mark.parametrize("rest", ["", " words.cuh", " name", ' "a" "b"', " <words.cuh>"])
def test_a_directive_needs_a_name_in_quotes(tmp_path: Path, folder: Path, rest: str) -> None:
    with pytest.raises(TemplateError, match="needs a name in quotes"):
        put_together(f"//% include{rest}\n", tmp_path / "t", [folder])
