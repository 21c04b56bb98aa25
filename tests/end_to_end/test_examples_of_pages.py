"""What pages show of a run on a recording is what that run prints."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner

from tuner.cli import cli

ROOT = Path(__file__).parents[2]
RMSNORM = ("rmsnorm.cu", "--peers", "--workload", "T=1,H=4096", "--workload", "T=8192,H=8192")


def without_times(text: str) -> str:
    """Replace what depends on the machine's speed, and all white space by single spaces."""
    # White space first: where a line breaks depends on the digits of what is replaced.
    text = " ".join(text.split())
    text = text.replace("trials/min", "trials/s")
    return re.sub(r"\b(?:\d+ min )?[\d.]+ (trials/s|s left|s(?= [a-zA-Z]))", r"# \1", text)


@pytest.mark.parametrize(
    ("page", "screen", "command"),
    [
        ("README.md", {"COLUMNS": "80", "LINES": "24"}, ("silu_and_mul.cu",)),
        ("docs/peers.md", {"COLUMNS": "140"}, RMSNORM),
    ],
)
def test_a_run_prints_what_the_page_shows(
    page: str,
    screen: dict[str, str],
    command: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    for name, value in screen.items():
        monkeypatch.setenv(name, value)
    kernel, *options = command
    arguments = [f"kernels/sglang/{kernel}", *options, "--device", "recorded"]
    # A long path would take the place of other lines.
    with TemporaryDirectory() as folder:
        words = [*arguments, "--session", f"{folder}/s"]
        done = CliRunner().invoke(cli, words, prog_name="tune")
    assert done.exit_code == 0, done.stderr
    named = done.output.replace(f"{folder}/s", "sessions/silu_and_mul-20261130-120000")
    printed = without_times(named)
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (shown,) = (block for language, block in blocks if not language)
    for line in shown.splitlines():
        assert line == "..." or without_times(line) in printed


def portable_files(folder: Path) -> None:
    """Fill in what the tutorial does, in a folder of its reader's."""
    for source, target in (
        ("kernels/portable/rmsnorm.cu", "kernels/rmsnorm.cu"),
        ("kernels/portable/rmsnorm.py", "kernels/rmsnorm.py"),
        ("templates/portable/rmsnorm.cu.j2", "templates/rmsnorm.cu.j2"),
        ("search_spaces/portable/rmsnorm.cu.yaml", "search_spaces/rmsnorm.yaml"),
    ):
        text = (ROOT / source).read_text(encoding="utf-8")
        text = text.replace("../../", "../").replace("/portable/", "/")
        (folder / target).write_text(text, encoding="utf-8")


def test_the_tutorial_goes_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    for folder in ("kernels", "templates", "search_spaces"):
        (tmp_path / folder).mkdir()
    source = (ROOT / "kernels/portable/rmsnorm.cu").read_text(encoding="utf-8")
    (tmp_path / "kernels/rmsnorm.cu").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^```console\n\$ tune (.*)\n((?s:.*?))^```$", page, re.MULTILINE)
    assert [command.split()[0] for command, _ in commands] == [
        *("init", "check", "check", "kernels/rmsnorm.cu")
    ]
    template = tmp_path / "templates/rmsnorm.cu.j2"
    for number, (command, shown) in enumerate(commands):
        if number:
            portable_files(tmp_path)
        if "Error" in shown:
            text = template.read_text(encoding="utf-8").replace(
                "vector_width }@", "vector_widht }@"
            )
            template.write_text(text, encoding="utf-8")
        done = CliRunner().invoke(cli, command.split(), prog_name="tune")
        assert done.exit_code == (2 if "Error" in shown else 0)
        for line in shown.splitlines():
            assert line == "..." or line in done.output, done.output


def test_what_the_tutorial_quotes_stands_in_the_tree() -> None:
    page = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    files = (*ROOT.glob("*/portable/rmsnorm.cu*"), ROOT / "kernels/portable/rmsnorm.py")
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    blocks = re.findall(r"^```(?:cuda|yaml|python)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    assert not [line for line in "".join(blocks).splitlines() if line != "..." and line not in text]
