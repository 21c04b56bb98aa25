"""The index of a campaign: a row for each job, links that lead somewhere, nothing from outside."""

from __future__ import annotations

import re
from pathlib import Path

from tuner.extensions.scale.campaign.page import (
    JobOutcome,
    JobState,
    render_campaign,
    write_campaign,
)

FOUND = JobOutcome("NVIDIA H200", 12, 4321, 1.2)
STATES = (
    JobState("one", "kernels/one.cu", "done", seconds=190.0, outcome=FOUND, exit_code=0),
    JobState("two", "two.cu", "done", kept=True, outcome=JobOutcome("NVIDIA H200", 1, 9, 0.3)),
    JobState("<b>", "x.cu", "failed", exit_code=2, message="<script>: no such kernel"),
    JobState("four", "", "running", seconds=3.0, place="GPU 2"),
)


def test_it_says_what_came_of_all_and_of_each() -> None:
    html = render_campaign(STATES, 400.0, "night", {"one"}, {"one", "<b>"})
    assert "2 of 4 done, 1 failed; 0.60x over the baselines" in html
    rows = re.findall(r'<tr class="(\w+)">\n<th scope="row">([^<]+)', html)
    assert rows == [("done", "one"), ("done", "two"), ("failed", "&lt;b&gt;"), ("running", "four")]
    assert "done before" in html
    assert "on GPU 2" in html
    assert "4,330" in html


def test_links_lead_to_files_beside_it_and_texts_are_escaped() -> None:
    html = render_campaign(STATES, 400.0, "night", {"one"}, {"one", "<b>"})
    links = re.findall(r'href="([^"]+)"', html)
    assert links == ["data:,", "one/report.html", "one.log", "%3Cb%3E.log"]
    assert "<script" not in html
    assert "default-src &#39;none&#39;" in html


def test_only_what_is_there_is_linked(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one/report.html").write_text("")
    (tmp_path / "four.log").write_text("")
    write_campaign(STATES, 1.0, tmp_path / "index.html")
    html = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'href="([^"]+)"', html) == ["data:,", "one/report.html", "four.log"]
    assert f"<code>{tmp_path.name}</code>" in html


def test_nothing_is_said_of_a_speedup_where_none_was_measured() -> None:
    html = render_campaign(STATES[3:], 1.0, "night", set(), set())
    assert "baselines" not in html
    assert "0 of 1 done" in html
