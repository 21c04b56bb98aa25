"""Pipes, devices, folders and links in place of files: one message, and nothing elsewhere."""

from __future__ import annotations

import lzma
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import faults
import pytest
from click.testing import CliRunner

from tuner.cli import cli
from tuner.model.bounds import CONTROL

Place = Callable[[Path], object]


def _pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def _folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def _endless_link(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3 << 30)


THINGS: dict[str, Place] = {
    "a pipe": _pipe,
    "a device": _device,
    "a folder": _folder,
    "a link to itself": _endless_link,
    "a sparse file of 3 GiB": _huge,
}
FILES = {
    "scale.yaml": ("check", "scale.yaml"),
    "scale.cu": ("scale.cu", *faults.ON_HOST, "--trials", "1"),
    "scale.cu.j2": ("render", "scale.yaml"),
    "scale.py": ("scale.cu", *faults.ON_HOST, "--trials", "1"),
    "new.cu": ("init", "new.cu"),
    "scale.json.xz": ("scale.cu", "--space", "scale.yaml", "--device", "recorded:scale.json.xz"),
    "cache.json": ("scale.cu", "--space", "scale.yaml", "--device", "recorded:cache.json"),
    "t4.json": ("compare", "--recording", "t4.json", "--searchers", "random"),
    "prices.yaml": (
        *("scale.cu", "--space", "scale.yaml", "--device", "host", "--model", "m"),
        *("--prices", "prices.yaml"),
    ),
    "marks.yaml": ("mutate", "scale.yaml", "--equivalent", "marks.yaml", "--limit", "1"),
}


JSON = {
    "nothing": b"",
    "NUL": bytes(100),
    "no UTF-8": b'{"a": "\xff\xfe"}',
    "half a character": b'{"model_type": "\\ud800", "traceEvents": [], "cache": {"\\ud800": {}}}',
    "lists in lists": b"[" * 100_000 + b"]" * 100_000,
    "objects in objects": b'{"a":' * 100_000,
    "a number of 400,000 digits": b'{"a": ' + b"9" * 400_000 + b"}",
    "no number": b'{"a": NaN, "hidden_size": -Infinity, "cache": NaN}',
    "a long text": b'"' + b"a" * 5_000_000 + b'"',
    "100,000 keys": b"{" + b",".join(b'"%d": 1' % n for n in range(100_000)) + b"}",
    "a word": b"true",
}
YAML = {
    "nothing": b"",
    "NUL": bytes(100),
    "no UTF-8": b'version: "\xff"',
    "half a character": b'version: 1\njobs: "\\ud800"\n',
    "lists in lists": b"a: " + b"[" * 100_000 + b"]" * 100_000,
    "maps in maps": b"".join(b" " * n + b"a:\n" for n in range(1000)),
    "a number of 400,000 digits": b"version: " + b"9" * 400_000,
    "no number": b"version: .nan\n",
    "a long text": b'version: "' + b"a" * 5_000_000 + b'"',
    "20,000 jobs": b"version: 1\njobs: [" + b",".join([b"{kernel: a.cu}"] * 20_000) + b"]\n",
    "an alias": b"a: &a [x]\nb: [*a, *a]\n",
}
SOURCES = {
    "nothing": b"",
    "NUL": bytes(100),
    "no UTF-8": b"\xff\xfe",
    "braces in braces": b"__global__ void f(int* y) {" + b"{" * 100_000 + b"}" * 100_000 + b"}",
    "a sum of 100,000": b"__global__ void f(int* y) { y[0] = " + b"1 + " * 100_000 + b"1; }",
    "a comment of 5 MB": b"// " + b"a" * 5_000_000,
    "50,000 macros": b"#define A B\n" * 50_000,
    "20,000 parameters": b"__global__ void f(" + b",".join([b"int* y"] * 20_000) + b") {}",
    "an escape": b"__global__ void f(int* y) { y[0] = \x1b; }",
}
PYTHON = {
    "nothing": b"",
    "NUL": bytes(100),
    "no UTF-8": b"\xff\xfe",
    "lists in lists": b"x = " + b"[" * 10_000 + b"]" * 10_000,
    "a sum of 100,000": b"x = " + b"1 + " * 100_000 + b"1",
    "an escape": b"\x1b",
}
FLEET = (
    "fleet",
    "config.json",
    "--dry-run",
    "--gpu",
    "G",
    "--triton",
    "3.6.0",
    "--engine-dir",
    ".",
)
CONTENTS = {
    "scale.yaml": (YAML, ("check", "scale.yaml", "--no-run")),
    "campaign.yaml": (YAML, ("campaign", "campaign.yaml", "--dry-run")),
    "marks.yaml": (YAML, FILES["marks.yaml"]),
    "cache.json": (JSON, FILES["cache.json"]),
    "t4.json": (JSON, FILES["t4.json"]),
    "trace.json": (JSON, ("timeline", "trace.json")),
    "definition.json": (JSON, ("definition.json", "--device", "host")),
    "config.json": (JSON, FLEET),
    "scale.json.xz": (
        {name: lzma.compress(content, preset=0) for name, content in JSON.items()},
        FILES["scale.json.xz"],
    ),
    "scale.cu": (SOURCES, ("check", "scale.yaml", "--no-run")),
    "new.cu": (SOURCES, ("init", "new.cu")),
    "new.py": (PYTHON, ("init", "new.py")),
}


ROUND = (
    *("scale.cu", *faults.ON_HOST, "--trials", "1"),
    *("--agent", "files", "--exchange", "exchange", "--wait", "1s", "--rounds", "1"),
)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a session, which was made at the path `project` beside it."""
    root = faults.written(tmp_path_factory.mktemp("tuned") / "project")
    words = ("scale.cu", *faults.ON_HOST, "--trials", "1", "--quiet")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        done = CliRunner().invoke(cli, [*words, "--session", "mine"])
    assert done.exit_code == 0, done.output
    return root.rename(root.with_name("kept"))


@pytest.fixture
def tuned(kept: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = faults.put_back(kept, kept.with_name("project"))
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = faults.written(tmp_path / "project")
    monkeypatch.chdir(root)
    return root


@pytest.mark.timeout(60)
@pytest.mark.parametrize("thing", THINGS.values(), ids=THINGS)
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file_is_one_message(project: Path, name: str, thing: Place) -> None:
    thing(project / name)
    result = CliRunner().invoke(cli, FILES[name], prog_name="tune")
    told = (result.output, result.exception)
    assert isinstance(result.exception, SystemExit), told
    assert result.exit_code == 2, told
    assert len(re.findall("^Error: ", result.stderr, re.MULTILINE)) == 1, told
    assert "Traceback" not in result.output
    assert name in result.stderr or "/dev/zero" in result.stderr
    assert not (project / "sessions").exists()


def _folders_of_sglang() -> None:
    for folder in ("srt/layers/moe/moe_runner/triton_utils", "kernels/ops/quantization"):
        Path(folder).mkdir(parents=True)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", CONTENTS)
def test_whatever_a_file_holds_it_is_one_message_and_soon(project: Path, name: str) -> None:
    _folders_of_sglang()
    contents, words = CONTENTS[name]
    for what, content in contents.items():
        (project / name).write_bytes(content)
        began_s = time.process_time()
        result = CliRunner().invoke(cli, words, prog_name="tune", color=True)
        told = (what, result.output[:2000], result.exception)
        assert isinstance(result.exception, SystemExit), told
        assert result.exit_code == 2, told
        assert len(re.findall("^Error: ", result.stderr, re.MULTILINE)) == 1, told
        assert len(result.stderr) < 10_000, told
        assert not CONTROL.search(result.output), told
        assert time.process_time() - began_s < 10, told


@pytest.mark.timeout(60)
@pytest.mark.parametrize("thing", [_pipe, _device, _folder], ids=["a pipe", "a device", "a folder"])
def test_an_exchange_of_no_files_is_waited_for_no_longer_than_asked(
    project: Path, thing: Place
) -> None:
    exchange = project / "exchange"
    (exchange / "round-01").mkdir(parents=True)
    for name in ("plan.json", "template.cu.j2", "space.yaml"):
        thing(exchange / "round-01" / name)
    result = CliRunner().invoke(cli, [*ROUND, "--quiet"], prog_name="tune")
    assert isinstance(result.exception, SystemExit), (result.output, result.exception)
    assert result.exit_code == 4, result.output
    assert "Traceback" not in result.output


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["round-01", "round-01/request.md"])
def test_no_request_is_written_through_a_link(project: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "request.md").write_text("mine")
    place = project / "exchange" / name
    place.parent.mkdir(parents=True)
    place.symlink_to(outside / Path(name).name if place.suffix else outside)
    result = CliRunner().invoke(cli, [*ROUND, "--quiet"], prog_name="tune")
    assert result.exit_code == 4, (result.output, result.exception)
    assert (outside / "request.md").read_text() == "mine"
    assert [one.name for one in outside.iterdir()] == ["request.md"]


# What a command writes in the current folder, and the command.
WRITTEN = {
    "search_spaces/saxpy.yaml": ("init", "saxpy.cu", "--force"),
    "templates/saxpy.cu.j2": ("init", "saxpy.cu", "--force"),
    "a.html": ("report", "mine", "--out", "a.html"),
    "a.csv": ("report", "mine", "--csv", "a.csv"),
    "mine/report.html": ("report", "mine"),
    "mine/tuned/scale-R1-N2048.cu": ("--resume", "mine", "--quiet", "--trust"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("partial", ["", ".partial", ".new", ".tmp"])
def test_nothing_is_written_through_a_link(
    tuned: Path, tmp_path: Path, name: str, partial: str
) -> None:
    shutil.copy(Path(__file__).parents[1] / "unit" / "data" / "saxpy.cu", tuned)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    place = tuned / f"{name}{partial}"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(victim)
    result = CliRunner().invoke(cli, WRITTEN[name], prog_name="tune")
    assert isinstance(result.exception, SystemExit | type(None)), (result.output, result.exception)
    assert victim.read_text() == "mine"
    assert result.exit_code == 0 or "is a link" in result.stderr, result.output
    if result.exit_code == 0:
        assert (tuned / name).is_file()
        assert not (tuned / name).is_symlink()
