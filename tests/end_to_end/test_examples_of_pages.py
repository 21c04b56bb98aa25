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
    printed = without_times(done.output.replace(f"{folder}/s", "sessions/silu_and_mul"))
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (shown,) = (block for language, block in blocks if not language)
    for line in shown.splitlines():
        assert line == "..." or without_times(line) in printed
