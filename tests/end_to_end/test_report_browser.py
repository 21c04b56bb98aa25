"""The report in a real browser: it draws, it complains of nothing, it asks nobody for anything."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import struct
import subprocess
import zlib
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.rounds_sample import session_with_rounds
from tuner.cli import cli
from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import Measurement, Occupancy, Resources, Result, Status, Trial
from tuner.report.data import ReportData, load
from tuner.report.html import render_report, write_report

BROWSER = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed"),
]
FLAGS = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
)
TIMEOUT_S = 60
FAST = Config.of({"block_size": 256, "vector_bytes": 16})


def make_trial(workload: Workload, number: int) -> Trial:
    config = Config.of({"block_size": 32 * (1 + number % 8), "vector_bytes": 4 * (1 + number % 4)})
    if number % 7 == 3:
        return Trial("t", workload, config, Status.RESOURCE_LIMIT, "spills <b>8</b> bytes a thread")
    time_us = 12.0 - 4.0 * (number % 4) / 3 + (number * 37 % 11) / 10
    return Trial(
        "t",
        workload,
        config,
        Status.CORRECT,
        resources=Resources(32 + number),
        occupancy=Occupancy(0.5, 4, "registers"),
        measurement=Measurement((time_us,), 20, 4),
    )


@pytest.fixture(scope="module")
def data() -> ReportData:
    workloads = [Workload.of({"T": t, "D": 14336}, held_out=t == 3) for t in (1, 128, 8192, 3)]
    return ReportData(
        kernel="silu_and_mul",
        device="NVIDIA H200",
        recorded=True,
        measured_on="2026-11-20",
        results=tuple(
            Result(w, 14.0, 8.0, 1.75, (1.7, 1.8), True, 0.6, FAST, Resources(32), None)
            for w in workloads
        ),
        records=tuple((make_trial(w, i), 0.1 * i) for w in workloads[:3] for i in range(60)),
        baselines_us={w.key: 14.0 for w in workloads},
        baseline_source="__global__ void k(float* x) {}\n",
        tuned_sources={w.key: "__global__ void k(float4* x) {}\n" for w in workloads},
        streaming_gbps=4200.0,
        traffic_bytes={w.key: 20_000_000 for w in workloads},
        operations={w.key: 60_000_000 for w in workloads},
        command="tune kernels/sglang/silu_and_mul.cu",
    )


@pytest.fixture(scope="module")
def with_rounds(tmp_path_factory) -> ReportData:
    folder = tmp_path_factory.mktemp("rounds") / "run"
    session_with_rounds(folder).close()
    return load(folder)


def browse(page: Path, profile: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    # root has no user namespace to make a sandbox in, as in most containers
    sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()
    done = subprocess.run(
        [BROWSER, *FLAGS, *sandbox, f"--user-data-dir={profile}", *flags, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def console(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


def pixels(image: Path) -> tuple[int, int, int]:
    """Return width, height and how many different filtered bytes an 8-bit PNG has."""
    content = image.read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", content[16:24])
    compressed, at = b"", 8
    while at < len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        if content[at + 4 : at + 8] == b"IDAT":
            compressed += content[at + 8 : at + 8 + length]
        at += 12 + length
    return width, height, len(set(zlib.decompress(compressed)))


@pytest.mark.parametrize(
    ("made", "width", "flags"),
    [
        ("data", 1200, ()),
        ("with_rounds", 1200, ("--blink-settings=preferredColorScheme=0",)),
        ("with_rounds", 500, ()),
    ],
    ids=["light", "dark", "narrow"],
)
def test_the_report_draws_without_a_complaint(made, request, tmp_path, width, flags):
    data = request.getfixturevalue(made)
    page, image = tmp_path / "report.html", tmp_path / "report.png"
    write_report(data, page)
    shot = (f"--screenshot={image}", f"--window-size={width},3000", *flags)
    done = browse(page, tmp_path / "profile", *shot)
    assert console(done) == []
    found_width, height, values = pixels(image)
    assert (found_width, height) == (width, 3000)
    assert values > 100


def test_an_empty_report_draws_without_a_complaint(tmp_path):
    page = tmp_path / "report.html"
    write_report(ReportData("k", "GPU", recorded=False), page)
    done = browse(page, tmp_path / "profile", "--dump-dom")
    assert console(done) == []
    assert "No result: no config was tried." in done.stdout


def test_a_script_in_a_record_is_text_in_the_page(data, tmp_path):
    attack = "<script>document.title = 'broken in'</script>"
    trial = replace(data.records[3][0], reason=attack)
    page = tmp_path / "report.html"
    write_report(replace(data, command=attack, records=((trial, 0.0),)), page)
    done = browse(page, tmp_path / "profile", "--dump-dom")
    assert console(done) == []
    assert "<title>broken in</title>" not in done.stdout
    assert done.stdout.count("&lt;script&gt;document.title") >= 2


def test_the_policy_stops_a_script_and_the_console_check_sees_it(data, tmp_path):
    page = tmp_path / "report.html"
    script = "<script>document.title = 'broken in'</script></body>"
    page.write_text(render_report(data).replace("</body>", script))
    done = browse(page, tmp_path / "profile", "--dump-dom")
    assert re.search("violates the following .*Content Security Policy", "".join(console(done)))
    assert "<title>broken in</title>" not in done.stdout


# Chromium's window is never narrower than 500 px: the page stands in a frame of its own width, from
# where this tells the page around it what it measures.
MEASURE = """<script>addEventListener("load", () => {
  const cut = [], wide = document.documentElement.clientWidth;
  for (const one of document.querySelectorAll("body *")) {
    const box = one.getBoundingClientRect();
    if (box.width && box.height && (box.right > wide + 1 || box.left < -1))
      cut.push(one.tagName + " " + (one.textContent || "").trim().slice(0, 40));
  }
  const height = name => document.querySelector(name)?.getBoundingClientRect().bottom ?? 0;
  parent.postMessage(JSON.stringify({
    wide, cut,
    scrolled: [...document.querySelectorAll(".scroll")].filter(
      one => one.scrollWidth > one.clientWidth + 1).map(one => one.getAttribute("aria-label")),
    answered: height("header"), plots: document.querySelectorAll("svg").length,
    sorts: (() => {
      const table = document.querySelector("table.sorts");
      if (!table) return [];
      const heads = [...table.tHead.rows[0].cells];
      const head = heads.findIndex(one => one.textContent.startsWith("Baseline"));
      const read = () => [...table.tBodies[0].rows].map(r => Number(r.cells[head].dataset.value));
      const orders = [];
      for (let turn = 0; turn < 2; turn++) {
        heads[head].querySelector("button").click();
        orders.push(read());
      }
      return orders;
    })(),
  }), "*");
});</script></body>"""
AROUND = """<body style="margin:0"><script>addEventListener("message", event => {
  document.body.append(Object.assign(document.createElement("pre"), {textContent: event.data}));
})</script><iframe src="inside.html" width="%d" height="800" style="border:0"></iframe></body>"""


def measure(data: ReportData, width: int, folder: Path) -> dict[str, Any]:
    """Lay a report out at a width; say what is cut or scrolled there, and how it sorts."""
    html = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", render_report(data))
    (folder / "inside.html").write_text(html.replace("</body>", MEASURE))
    around = folder / "around.html"
    around.write_text(AROUND % width)
    flags = ("--dump-dom", "--allow-file-access-from-files", "--window-size=2000,900")
    done = browse(around, folder / "profile", *flags)
    found = re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)
    assert found is not None, done.stderr
    measured: dict[str, Any] = json.loads(unescape(found[1]))
    return measured


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> ReportData:
    """A run on what an H200 measured, of 34 workloads."""
    folder = tmp_path_factory.mktemp("recorded") / "run"
    words = ["kernels/sglang/silu_and_mul.cu", "--device", "recorded", "--trials", "12", "--quiet"]
    with contextlib.chdir(Path(__file__).parents[2]):
        done = CliRunner().invoke(cli, [*words, "--session", str(folder)], prog_name="tune")
    assert done.exit_code == 0, done.output
    return load(folder)


@pytest.mark.parametrize("width", [420, 1280, 1920])
@pytest.mark.parametrize("made", ["recorded", "data", "with_rounds"])
def test_nothing_is_cut_at_any_width(made, width, request, tmp_path):
    found = measure(request.getfixturevalue(made), width, tmp_path)
    assert found["wide"] == width
    assert (found["scrolled"], found["cut"]) == ([], [])
    assert found["plots"] <= 12


@pytest.mark.parametrize("made", ["recorded", "data"])
def test_the_first_screen_has_the_answer_and_the_table_sorts(made, request, tmp_path):
    data = request.getfixturevalue(made)
    found = measure(data, 1280, tmp_path)
    assert 0 < found["answered"] <= 800
    falling, rising = found["sorts"]
    assert falling == sorted(falling, reverse=True)
    assert rising == sorted(rising)
    assert len(rising) == len(data.results)
    assert len(render_report(data).encode()) < 2_000_000
