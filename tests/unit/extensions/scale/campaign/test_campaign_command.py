"""`tune campaign` as a user sees it: what is refused before anything starts, and how it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tuner.extensions.scale.campaign import file as campaign_file
from tuner.extensions.scale.campaign.jobs import CampaignJob
from tuner.extensions.scale.campaign.ledger import Ledger
from tuner.extensions.scale.campaign.run import Campaign
from tuner.model.errors import InputError

SCALE = Path(__file__).parents[4] / "end_to_end/data/scale"
FILE = "version: 1\nfolder: all\ndefaults: {device: host}\njobs: [{kernel: kernels/scale.cu}]\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one small kernel and a campaign of it."""
    monkeypatch.chdir(shutil.copytree(SCALE, tmp_path / "project"))
    Path("c.yaml").write_text(FILE, encoding="utf-8")
    return Path()


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch):
    """Have each job end at once with a code, in the place of a run."""

    def quick(name: str, kernel: Path, *rest: object, **more: object) -> CampaignJob:
        lines = "import sys; print('Error: no such thing', file=sys.stderr); sys.exit({})"
        command = (sys.executable, "-c", lines.format(codes.pop(0)))
        return CampaignJob(name=name, kernel=str(kernel), key="k", start=command)

    codes: list[int] = []
    monkeypatch.setattr(campaign_file, "tuning_job", quick)
    return codes


def test_a_dry_run_lists_what_is_left_and_leaves_nothing_behind(tune, project: Path) -> None:
    result = tune("campaign", "c.yaml", "--dry-run")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == ["scale", "1 of 1 jobs are left"]
    assert not Path("all").exists()
    listed = json.loads(tune("campaign", "c.yaml", "--dry-run", "--json").stdout)
    assert [one["status"] for one in listed["jobs"]] == ["waiting"]
    assert listed["exit_code"] == 0, "that of the command"


@pytest.mark.parametrize(
    ("words", "text", "said"),
    [
        (["gone.yaml"], FILE, "Error: gone.yaml: no such file"),
        (["c.yaml"], FILE.replace("scale.cu", "scle.cu"), "c.yaml:4: no such kernel file"),
        (["c.yaml"], FILE.replace("jobs:", "job:"), "unknown key `job`\n  did you mean `jobs`?"),
        (["c.yaml", "--folder", "c.yaml/below"], FILE, "c.yaml/below: cannot write here: "),
        (["c.yaml", "--folder", "c.yaml/below"], FILE, "another folder with `folder` or --folder"),
        (["c.yaml", "--folder", ""], FILE, "no folder is named"),
    ],
)
def test_bad_input_is_one_error_and_exit_code_2(
    tune, project: Path, words: list[str], text: str, said: str
) -> None:
    Path("c.yaml").write_text(text, encoding="utf-8")
    result = tune("campaign", *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not Path("all").exists()


@pytest.mark.parametrize("folder", ["c.yaml", "c.yaml/below"])
def test_a_dry_run_refuses_a_file_in_the_place_of_the_folder(
    tune, project: Path, folder: str
) -> None:
    result = tune("campaign", "c.yaml", "--dry-run", "--folder", folder)
    assert result.exit_code == 2
    assert f"{folder}: cannot write here: Not a directory" in result.stderr


def test_what_came_of_each_job_stands_at_the_end(tune, project: Path, ends: list[int]) -> None:
    ends[:] = [0]
    result = tune("campaign", "c.yaml")
    assert result.exit_code == 0, result.output
    said = re.sub(r"in \d+ s", "in N s", result.output)
    assert said.splitlines()[-3:] == [
        "scale: done in N s",
        "1 of 1 jobs done in N s",
        "index  all/index.html",
    ]


def test_without_a_gpu_the_first_line_says_that_recordings_answer(
    tune, project: Path, ends: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign_file, "gpu_count", lambda: 0)
    Path("c.yaml").write_text(FILE.replace("host", "auto"), encoding="utf-8")
    ends[:] = [0]
    result = tune("campaign", "c.yaml")
    said = "RECORDED: no NVIDIA GPU was found, so recordings answer for 1 of 1 jobs\n"
    assert result.stderr.startswith(said)


def test_a_failed_job_gives_the_exit_code_and_its_error(
    tune, project: Path, ends: list[int]
) -> None:
    ends[:] = [4]
    result = tune("campaign", "c.yaml", "--json")
    assert result.exit_code == 4
    found = json.loads(result.stdout)
    assert found["exit_code"] == 4
    (job,) = found["jobs"]
    assert (job["status"], job["exit_code"], job["message"]) == ("failed", 4, "no such thing")
    assert "scale on slot 0, starting" in result.stderr


def test_a_disk_that_fills_up_is_told_in_the_object_and_by_its_code(
    tune, project: Path, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(self: Ledger) -> None:
        if self.jobs:
            raise InputError("cannot write here: No space left on device", path=Path("all"))

    monkeypatch.setattr(Ledger, "save", save)
    result = tune("campaign", "c.yaml", "--json")
    assert result.exit_code == 2
    assert result.stderr.endswith("Error: all: cannot write here: No space left on device\n")
    found = json.loads(result.stdout)
    said = "all: cannot write here: No space left on device"
    assert (found["exit_code"], found["error"]) == (2, said)
    assert [one["status"] for one in found["jobs"]] == ["waiting"]
    told = tune("campaign", "c.yaml")
    assert told.exit_code == 2
    assert "0 of 1 jobs done" in told.stdout


def test_a_dry_run_tells_of_a_finished_job_whose_session_is_junk(
    tune, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quick(name: str, kernel: Path, settings: object, folder: Path, **more: object):
        command = (sys.executable, "-c", "")
        session = folder / name
        return CampaignJob(name=name, kernel=str(kernel), key="k", start=command, session=session)

    monkeypatch.setattr(campaign_file, "tuning_job", quick)
    assert tune("campaign", "c.yaml").exit_code == 0
    Path("all/scale").mkdir()
    Path("all/scale/session.db").write_text("junk")
    result = tune("campaign", "c.yaml", "--dry-run")
    assert result.exit_code == 0
    told, left = result.stdout.splitlines()
    assert told.startswith("scale: failed: restore its session from a copy, or move its folder")
    assert "all/scale/session.db: the database is damaged" in told
    assert left == "1 of 1 jobs are left"
    again = tune("campaign", "c.yaml", "--json")
    assert again.exit_code == json.loads(again.stdout)["exit_code"] == 2
    assert told.partition(": ")[2] in again.stderr


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each job take a minute."""

    def slow(name: str, kernel: Path, *rest: object, **more: object) -> CampaignJob:
        command = (sys.executable, "-c", "import time; time.sleep(60)")
        return CampaignJob(name=name, kernel=str(kernel), key="k", start=command)

    monkeypatch.setattr(campaign_file, "tuning_job", slow)


def test_a_campaign_whose_time_is_over_says_how_to_go_on(tune, project: Path, slow: None) -> None:
    Path("c.yaml").write_text(FILE.replace("defaults", "time: 0.3s\ndefaults"), encoding="utf-8")
    result = tune("campaign", "c.yaml")
    assert result.exit_code == 130
    assert "scale: stopped: the time was over" in result.output
    assert result.stderr.splitlines()[-1] == "to go on: tune campaign c.yaml"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_campaign_tells_what_came_of_its_jobs(
    tune, project: Path, slow: None, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: Campaign, listener: object) -> None:
        turn(self, listener)
        if self.states[0].status == "running":
            os.kill(os.getpid(), number)

    turn = Campaign._turn
    monkeypatch.setattr(Campaign, "_turn", interrupt)
    result = tune("campaign", "c.yaml", "--json")
    assert result.exit_code == 130
    found = json.loads(result.stdout)
    (job,) = found["jobs"]
    assert (found["exit_code"], job["status"], job["message"]) == (130, "stopped", "interrupted")
    assert found["error"] is None
    assert "scale, stopped: interrupted" in result.stderr
    assert result.stderr.splitlines()[-1] == "interrupted; resume with: tune campaign c.yaml"
    assert "scale: stopped: interrupted" in tune("campaign", "c.yaml").stdout.splitlines()
