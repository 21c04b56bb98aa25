"""Whatever a file, compiler, server or evaluator says, no terminal obeys it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import caches
import faults
import pytest
from click.testing import CliRunner
from hostile_server import HostileServer
from recordings import recording
from timelines import kernel, nsys_export, torch_trace

from tuner.cli import cli
from tuner.cli.console import Console
from tuner.cli.printing import visible
from tuner.device.recorded.recording import RecordedProgram, RecordedWorkload, save_recording
from tuner.model.bounds import CONTROL
from tuner.model.trial import Status

EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\x1b]8;;http://x\x07\u202e\u2066"
ESCAPED = EVIL.encode("unicode_escape").decode()
SPACE = (faults.PROJECT / "scale.yaml").read_text()
EVALUATOR = Path(__file__).parents[1] / "support" / "fake_evaluator.py"
CHECK, TUNE = ("check", "scale.yaml"), ("scale.cu", *faults.ON_HOST, "--trials", "2")
RECORDED = ("scale.cu", "--space", "scale.yaml", "--device", "recorded:r.json.xz")
FLEET = ("fleet", "m.json", "--dry-run", "--gpu", EVIL, "--triton", "3.6.0", "--engine-dir", ".")
Words = tuple[str, ...]


def write(**contents: str) -> None:
    for name, content in contents.items():
        Path(name.replace("_", ".")).write_text(content, encoding="utf-8")


def record() -> None:
    says = {"a": RecordedProgram(status=Status.INCORRECT, reason=EVIL)}
    made = recording(workloads={"R=1,N=2048": RecordedWorkload(baseline="a", programs=says)})
    device = made.device.model_copy(update={"name": EVIL, "environment": {EVIL: EVIL}})
    changed = {"kernel": "scale", "device": device, "created": EVIL, "operators": {}}
    for path in ("r.json.xz", "kernels/recordings/h/scale.json.xz"):
        save_recording(made.model_copy(update=changed), Path(path))


def evaluate() -> None:
    """A baseline and a reason in an evaluator's words, which a session keeps."""
    answer = {"status": "launch", "reason": EVIL}
    describe = {"name": EVIL, "environment": {"x": EVIL}}
    words = [sys.executable, str(EVALUATOR), f"answer={json.dumps(answer)}"]
    write(eval_sh=f"#!/bin/sh\nexec {shlex.join([*words, f'describe={json.dumps(describe)}'])}\n")
    Path("eval.sh").chmod(0o755)


def problem() -> None:
    definition = {"name": EVIL, "op_type": EVIL, "axes": {EVIL: {"type": EVIL}}, "inputs": {}}
    write(d_json=json.dumps(definition), p_py=f"class Model: {ESCAPED!r}\n", k_cu=f"// {EVIL}\n")


TEXTS: dict[str, tuple[Callable[[], object], Sequence[Words]]] = {
    "a compiler": (lambda: write(scale_cu=f"#error {EVIL}\n"), (CHECK, TUNE)),
    "an exception": (lambda: write(scale_py=f"raise ValueError({EVIL!r})\n"), (CHECK, TUNE)),
    "a print": (
        lambda: write(scale_py=f"import sys\nprint({EVIL!r})\nsys.stderr.write({EVIL!r})\n"),
        (CHECK, TUNE),
    ),
    "a template": (
        lambda: write(**{"scale.cu.j2": f"#error {EVIL}\n"}),
        (CHECK, TUNE, ("render", "scale.yaml")),
    ),
    "a YAML text": (
        lambda: write(scale_yaml=SPACE.replace("fault: [0]", f'fault: ["{ESCAPED}"]')),
        (CHECK, TUNE),
    ),
    "a YAML key": (lambda: write(c_yaml=f'"{ESCAPED}": 1\n'), (("campaign", "c.yaml"),)),
    "a timeline": (
        lambda: torch_trace(Path("t.json"), [kernel(f"{EVIL}\ud800", 0.0, 1.0)], gpu=EVIL),
        (("timeline", "t.json"), ("timeline", "t.json", "--top", "1")),
    ),
    "an export of nsys": (
        lambda: nsys_export(Path("t.sqlite"), [(EVIL, 0, 9, 1)]),
        (("timeline", "t.sqlite"),),
    ),
    "a cache": (
        lambda: caches.written(Path("c.json"), caches.cache(device_name=EVIL, kernel_name=EVIL)),
        (
            ("compare", "--recording", "c.json", "--searchers", "random", "--trials", "5"),
            ("scale.cu", "--space", "scale.yaml", "--device", "recorded:c.json"),
        ),
    ),
    "a recording": (record, (RECORDED, ("devices",), ("compare", "--recording", "r.json.xz"))),
    "an evaluator": (
        evaluate,
        (("scale.cu", "--space", "scale.yaml", "--device", "command:./eval.sh", "--trials", "2"),),
    ),
    "a model's config": (
        lambda: write(m_json=json.dumps({"model_type": EVIL, EVIL: EVIL})),
        (FLEET,),
    ),
    "a problem": (problem, (("d.json",), ("init", "p.py"), ("init", "k.cu"), ("p.py",))),
    "a file's name": (
        lambda: write(**{f"{EVIL.replace('/', '')}.cu": "", "c.yaml": "version: 1\njobs: []\n"}),
        ((f"{EVIL.replace('/', '')}.cu",), ("init", f"{EVIL.replace('/', '')}.cu")),
    ),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("source", TEXTS)
def test_no_text_from_outside_reaches_a_terminal_as_a_command(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(faults.written(tmp_path / "project"))
    prepare, commands = TEXTS[source]
    prepare()
    for words in commands:
        # With colour click leaves escapes as they are.
        result = CliRunner().invoke(cli, words, prog_name="tune", color=True)
        told = (words, result.output, result.exception)
        assert result.exception is None or isinstance(result.exception, SystemExit), told
        assert not CONTROL.search(result.output), told
        for folder in [*Path("sessions").glob("*")][:1]:
            for again in (("report", str(folder)), ("--resume", str(folder), "--trust")):
                result = CliRunner().invoke(cli, again, prog_name="tune", color=True)
                assert not CONTROL.search(result.output), told


def test_a_servers_words_are_no_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(faults.written(tmp_path / "project"))
    body = json.dumps({"error": {"message": EVIL}, "data": [{"id": EVIL}]}).encode()
    for status in (200, 403):
        head = f"HTTP/1.1 {status} {EVIL}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with HostileServer(lambda *_, sent=(head, body): iter(sent)) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.url)
            words = (*TUNE, "--model", "m", "--rounds", "1")
            result = CliRunner().invoke(cli, words, prog_name="tune", color=True)
        assert result.exit_code == 4, result.output
        assert not CONTROL.search(result.output), result.output


def test_on_a_terminal_the_only_escapes_are_richs_own(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(force_terminal=True, color_system="standard", width=200)
    console.print(EVIL, style="bold")
    console.print(f"[link=http://x]{EVIL}[/link] :skull:")
    printed = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    shown = ESCAPED.replace("\\x07", "")  # which Rich leaves out
    assert printed.splitlines() == [shown, f"[link=http://x]{shown}[/link] :skull:"]


def test_an_error_that_nobody_caught_is_printed_like_all_else() -> None:
    code = f"import tuner.cli as c; c.cli.invoke = lambda _: int({EVIL!r}); c.main()"
    words = [sys.executable, "-c", code, "devices"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "ValueError" in done.stderr
    assert not CONTROL.search(done.stderr)


def test_what_can_be_seen_is_printed_as_it_is() -> None:
    for text in ("naïve 日本語 \u00a0\u3000|", "two\nlines\tand a tab", "ends\r\n"):
        assert visible(text) == text.replace("\r", "")
    assert visible("a\rb\ud800\u200b") == "a\\rb\\ud800\\u200b"


def test_nothing_prints_past_the_one_writer() -> None:
    package = Path(cli.__module__.replace(".", "/")).parent
    root = Path(__file__).parents[2] / package
    allowed = {"cli/console.py", "cli/printing.py", "__main__.py"}
    past = re.compile(r"from rich\.(console import Console|live)|^\s*print\(|std(out|err)\.write")
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if any(map(past.search, path.read_text().splitlines()))
    }
    assert found - allowed == set()
