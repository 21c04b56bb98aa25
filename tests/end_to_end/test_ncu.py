"""`tune ncu`: a program for Nsight Compute, up to the call of a driver that is not here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result as Done
from manifests import plan_of

from tuner.analysis.sass import find_nvdisasm
from tuner.app.session_plan import manifest_of
from tuner.app.trust import trust
from tuner.device.select import gpu_count
from tuner.model.trial import Result
from tuner.session.events import MachineCodeCompared
from tuner.session.session import Session

Tune = Callable[..., Done]
Project = Any  # of conftest.py
# Notes how it was called, runs what it is to watch, and leaves a report where that ended well.
TOOL = """\
import subprocess, sys
export = next(a.partition("=")[2] for a in sys.argv if a.startswith("--export="))
open("called", "a").write(" ".join(sys.argv[1:]) + "\\n")
program = sys.argv.index("program.py")
ended = subprocess.run([sys.executable, "-c", "pass"] if {works} else sys.argv[program - 2 :])
if ended.returncode:
    sys.exit("==ERROR== The application returned an error code (1).")
open(export + ".ncu-rep", "w").write(export)
"""


@pytest.fixture
def session(project: Project) -> Path:
    plan = plan_of(project.space, device="cuda")
    spec, space = plan.spec, plan.space
    folder = project.root / "session"
    trust(spec.reference)
    with Session.create(folder, manifest_of(plan, ("tune",)), {"architecture": "sm_80"}) as made:
        made.add_candidate("initial", plan.template.text, spec.path.read_text("utf-8"))
        values: dict[str, Any] = {"baseline_us": 2.0, "tuned_us": 1.0, "speedup": 2.0}
        values |= {"interval": (1.9, 2.1), "paired": True, "roofline_share": 0.5}
        values |= {"resources": None, "occupancy": None}
        made.append(Result(workload=spec.tuned[0], config=space.default, **values))
    return folder


@pytest.fixture
def put_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    def put(works: bool) -> None:
        tool = tmp_path / "bin" / "ncu"
        tool.parent.mkdir()
        tool.write_text(f"#!{sys.executable} -IS\n{TOOL.replace('{works}', repr(works))}")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tool.parent), prepend=os.pathsep)

    return put


def test_the_program_runs_up_to_the_driver_wherever_its_folder_lies(
    session: Path, tune: Tune, tmp_path: Path, put_tool: Callable[[bool], None]
) -> None:
    put_tool(False)
    done = tune("ncu", str(session), "N=4096")
    assert done.exit_code == 0, done.output
    folder = session / "ncu" / "N=4096"
    assert f"sh {folder / 'ncu.sh'}\n" in done.output
    assert "for GPUs of sm_80" in done.output
    assert "__global__" in (folder / "winner" / "kernel.cu").read_text()
    assert (folder / "arrays-0.bin").stat().st_size > 2 * 4 * 4096
    assert not (folder / "arrays-1.bin").exists()  # both have the same inputs
    moved = tmp_path / "a, b"
    folder.rename(moved)
    if gpu_count():
        pytest.skip("here the program would run")
    ended = subprocess.run(
        [sys.executable, moved / "program.py", "winner"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "driver" in ended.stderr
    assert "Traceback" not in ended.stderr
    script = subprocess.run(
        ["/bin/sh", moved / "ncu.sh"], capture_output=True, text=True, check=False
    )
    assert script.stderr.count("returned an error code") == 2
    first, second = (moved / "called").read_text().splitlines()
    assert "--source-folders=baseline --export=baseline --launch-skip=1 --launch-count=1" in first
    assert second.endswith(f"{sys.executable} -P program.py winner")


def test_it_is_profiled_where_the_tool_is_and_what_the_tool_says_is_told(
    session: Path, tune: Tune, tmp_path: Path, put_tool: Callable[[bool], None]
) -> None:
    put_tool(True)
    done = tune("ncu", str(session), "N=4096", "--run", "--to", str(tmp_path / "made"))
    assert done.exit_code == 0, done.output
    reports = [tmp_path / "made" / f"{name}.ncu-rep" for name in ("baseline", "winner")]
    assert [report.read_text() for report in reports] == ["baseline", "winner"]
    assert done.output.endswith(f"ncu-ui {reports[0]} {reports[1]}\n")


@pytest.mark.skipif(gpu_count() > 0, reason="here the program would run")
def test_a_tool_that_makes_no_report_is_an_error(
    session: Path, tune: Tune, put_tool: Callable[[bool], None]
) -> None:
    put_tool(False)
    done = tune("ncu", str(session), "N=4096", "--run")
    assert done.exit_code != 0
    assert "Nsight Compute made no report: winner: " in done.output
    assert "driver" in done.output


@pytest.mark.skipif(find_nvdisasm() is None, reason="there is no disassembler")
def test_the_report_then_shows_the_lines_whose_machine_code_differs(
    session: Path, tune: Tune
) -> None:
    for _ in range(2):
        assert tune("ncu", str(session), "N=4096", "--target", "sm_90a").exit_code == 0
    with Session.open(session, read_only=True) as opened:
        (compared,) = opened.events(MachineCodeCompared)
    assert compared.architecture == "sm_90a"
    assert min(compared.instructions) > 10
    lines = [line for line in compared.lines if line.line_before and line.line_after]
    assert all(line.before != line.after for line in lines)
    page = (session / "report.html").read_text(encoding="utf-8")
    assert f"N=4096: {compared.instructions[1]} instructions where the baseline has" in page
    assert "LDG.E" in page


def test_nothing_is_written_through_a_link_in_a_session(
    session: Path, tune: Tune, tmp_path: Path, put_tool: Callable[[bool], None]
) -> None:
    put_tool(False)
    folder, secret = session / "ncu" / "N=4096", tmp_path / "secret"
    folder.mkdir(parents=True)
    secret.write_text("mine")
    for name in ("program.py", "winner.jobs", "arrays-0.bin", "ncu.sh"):
        (folder / name).symlink_to(secret)
    assert tune("ncu", str(session), "N=4096").exit_code == 0
    assert secret.read_text() == "mine"
    shutil.rmtree(folder)
    folder.symlink_to(tmp_path)
    done = tune("ncu", str(session), "N=4096")
    assert done.exit_code == 2
    assert "is a link" in done.output
    assert not (tmp_path / "ncu.sh").exists()


def test_what_was_not_tuned_has_no_program(session: Path, tune: Tune) -> None:
    done = tune("ncu", str(session), "N=17")
    assert done.exit_code != 0
    assert "nothing was tuned for N=17\n  tuned workloads: N=4096" in done.output
    assert not (session / "ncu").exists()
