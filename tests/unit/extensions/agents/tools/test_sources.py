"""Reading and searching files stays inside the folders given; the notes that ship."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from tuner.compiler.base import CompileRequest
from tuner.extensions.agents.tools.arguments import SearchSourceArguments, ToolLimits
from tuner.extensions.agents.tools.tool_session import (
    SourceFolders,
    cuda_headers,
    note_names,
    note_titles,
    read_note,
)
from tuner.model.errors import InputError

SECRET = "key = 12345"  # noqa: S105 - what must not be read


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A folder with sources, beside a file that is nobody's business."""
    (tmp_path / "secret.txt").write_text(SECRET)
    top = tmp_path / "library"
    (top / "include" / "deep").mkdir(parents=True)
    (top / "readme.md").write_text("# library\nhas load_tile\n")
    (top / "include" / "tile.h").write_text("void load_tile(int);\n\nvoid Load_Tile_2();\n")
    (top / "include" / "deep" / "more.h").write_text("// load_tile, load_tile\n" * 8)
    (top / "include" / "image.bin").write_bytes(b"\0load_tile")
    (top / ".git").mkdir()
    (top / ".git" / "config").write_text(SECRET + " load_tile")
    (top / "out").symlink_to(tmp_path)
    (top / "stolen.h").symlink_to(tmp_path / "secret.txt")
    (top / "inside.h").symlink_to(top / "include" / "tile.h")
    (top / "circle").symlink_to(top / "circle")
    os.mkfifo(top / "pipe")
    return top


@pytest.fixture
def sources(library: Path) -> SourceFolders:
    return SourceFolders([library], lambda: [], ToolLimits())


def search(sources: SourceFolders, text: str, **changes) -> list[str]:
    wanted = SearchSourceArguments(text=text, **{"most": 40, **changes})
    return sources.search(wanted, time.monotonic() + 60).splitlines()


def test_a_file_is_shown_with_numbered_lines(sources):
    text = sources.text_of("library/include/tile.h", 1, 1)
    assert text.splitlines() == [
        "library/include/tile.h:",
        "    1| void load_tile(int);",
        "[lines 1 to 1 of 3]",
    ]


def test_lines_are_those_that_a_compiler_counts(sources, library):
    (library / "odd.h").write_bytes(b"first\x0cstill\r\nsecond\n")
    assert "    2| second\n" in sources.text_of("library/odd.h", 2, 2)
    assert search(sources, "second", folder="library/odd.h")[0] == "library/odd.h:2: second"


def test_folders_are_listed_without_what_is_hidden(sources):
    assert sources.text_of(".", 1, None) == "source folders:\n- library/"
    listing = sources.text_of("library", 1, None)
    assert "- include/" in listing
    assert "- readme.md" in listing
    assert ".git" not in listing


def test_a_link_that_stays_inside_is_followed(sources):
    assert "load_tile" in sources.text_of("library/inside.h", 1, None)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "//etc/passwd",
        "..",
        "../secret.txt",
        "library/../secret.txt",
        "library/include/../../secret.txt",
        "library/out/secret.txt",
        "library/stolen.h",
        "library/circle",
        "library/pipe",
        "library/.git/config",
        "library/missing.h",
        "library/readme.md/more",
        "library/" + "a/" * 2000,
        "library/" + "a" * 3000,
        "library/read\0me.md",
        "library\\readme.md",
        "~/secret.txt",
        "file:///etc/passwd",
        "other/readme.md",
    ],
)
def test_there_is_no_way_out(sources, library, path):
    with pytest.raises(InputError, match="is in no source folder"):
        sources.text_of(str(library / "readme.md"), 1, None)
    with pytest.raises(InputError) as caught:
        sources.text_of(path, 1, None)
    assert SECRET not in str(caught.value)
    assert len(str(caught.value)) < 5000


def test_binary_and_large_files_are_not_shown(library):
    (library / "large.h").write_text("load_tile\n" * 1000)
    sources = SourceFolders([library], lambda: [], ToolLimits(file_bytes=5000))
    for name in ("include/image.bin", "large.h"):
        with pytest.raises(InputError, match="cannot be shown"):
            sources.text_of(f"library/{name}", 1, None)
    assert not any("large.h" in line or "image" in line for line in search(sources, "load_tile"))


def test_a_search_lists_places_from_the_top_down(sources):
    assert search(sources, "12345") == ["[0 lines in 4 files]"], "nothing hidden, no link"
    assert search(sources, "load_tile") == [
        "library/readme.md:2: has load_tile",
        "library/include/tile.h:1: void load_tile(int);",
        *(f"library/include/deep/more.h:{n}: // load_tile, load_tile" for n in range(1, 6)),
        "[7 lines in 4 files]",
    ]


def test_a_search_knows_words_and_cases(sources):
    found = search(sources, "load_tile", ignore_case=True, folder="library/include/tile.h")
    assert [line.rpartition(":")[0] for line in found[:-1]] == [
        "library/include/tile.h:1",
        "library/include/tile.h:3",
    ]
    wanted = {"ignore_case": True, "whole_word": True, "folder": "library/include/tile.h"}
    assert len(search(sources, "load_tile", **wanted)) == 2


def test_a_pattern_is_taken_literally_and_cannot_hang(library):
    (library / "long.h").write_text("a" * 1_000_000)
    sources = SourceFolders([library], lambda: [], ToolLimits())
    started_s = time.perf_counter()
    assert search(sources, "(a+)+$") == ["[0 lines in 5 files]"]
    assert time.perf_counter() - started_s < 5


def test_results_are_few_and_short(library):
    (library / "wide.h").write_text(f"needle {'x' * 5000}\n" * 100)
    sources = SourceFolders([library], lambda: [], ToolLimits(matches=3))
    lines = search(sources, "needle")
    assert len(lines) == 4
    assert all(len(line) < 400 for line in lines)
    assert "there are more: look for a longer text" in lines[-1]


def test_a_search_ends_at_its_deadline(sources):
    wanted = SearchSourceArguments(text="load_tile")
    assert "the time is over" in sources.search(wanted, time.monotonic() - 1)


def test_folders_of_one_name_are_told_apart(tmp_path, library):
    other = tmp_path / "other" / "library"
    other.mkdir(parents=True)
    (other / "b.h").write_text("here\n")
    sources = SourceFolders([library, other], lambda: [], ToolLimits())
    assert sources.text_of(".", 1, None).splitlines()[1:] == ["- library/", "- library-2/"]
    assert "here" in sources.text_of("library-2/b.h", 1, None)


def test_a_folder_that_is_not_there_is_refused_at_once(tmp_path):
    with pytest.raises(InputError, match="no such folder of sources"):
        SourceFolders([tmp_path / "cutlass"], lambda: [], ToolLimits())


def test_cudas_headers_can_be_read_and_searched(make_tools):
    tools = make_tools()
    assert "- cuda_bf16.h" in tools.call("read_source", {"path": "cuda"})
    assert "|" in tools.call("read_source", {"path": "cuda/cuda_bf16.h", "last_line": 20})
    text = tools.call("search_source", {"text": "__nv_bfloat162 __ldcs", "folder": "cuda"})
    assert "cuda/cuda_bf16.h:" in text


def test_the_headers_are_those_that_the_compiler_has(compiler):
    first = cuda_headers()[0]
    assert compiler.version.removeprefix("NVRTC ") in first.name or (first / "cuda.h").is_file()


def test_the_kernels_own_texts_are_read_by_name(make_tools):
    tools = make_tools()
    assert "blockIdx.x * 128" in tools.call("read_source", {"path": "baseline"})
    assert "@{ block }@" in tools.call("read_source", {"path": "template"})
    text = tools.call("read_source", {"path": "space", "candidate": "initial", "first_line": 6})
    assert "    6| axes: [N]" in text


def test_a_users_folder_is_read_through_the_tools(make_tools, library):
    tools = make_tools(sources=[library])
    assert "load_tile" in tools.call("read_source", {"path": "library/readme.md"})
    assert "is in no source folder" in tools.call("read_source", {"path": "../secret.txt"})
    assert "library/readme.md:2" in tools.call("search_source", {"text": "load_tile"})


CODE = re.compile(r"^```cuda\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SNIPPETS = [
    pytest.param(code, id=f"{name}-{number}")
    for name in note_names()
    for number, code in enumerate(CODE.findall(read_note(name)), 1)
]


@pytest.mark.parametrize("name", note_names())
def test_a_note_has_a_title_and_is_short(name):
    text = read_note(name)
    assert text.startswith("# ")
    assert 20 <= len(text.splitlines()) <= 90
    assert len(text) < 7000
    assert all(len(line) <= 120 for line in text.splitlines())
    assert text.count("```") % 2 == 0


@pytest.mark.parametrize("code", SNIPPETS)
def test_the_code_of_the_notes_compiles_for_hopper(compiler, code):
    kernels = tuple(re.findall(r"__global__ void (?:__\w+\([^)]*\) )?(\w+)\(", code))
    assert kernels, "a snippet defines a kernel, so that its code is generated"
    result = compiler.submit(CompileRequest(code, kernels, "sm_90a")).result()
    assert result.ok, result.error


def test_there_is_code_to_check():
    assert len(SNIPPETS) >= 8


def test_the_notes_are_listed_by_title_and_read_by_name(make_tools):
    tools = make_tools()
    listed = tools.call("read_notes", {})
    assert len(listed.splitlines()) == len(note_names())
    for name, title in note_titles().items():
        assert f"- {name}: {title}" in listed
        assert tools.call("read_notes", {"name": name}) == read_note(name)
