"""Count with NVIDIA's Nsight Compute: one process of the tool runs one program on real inputs."""

from __future__ import annotations

import csv
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from tuner.compiler.command import candidates, executable
from tuner.device.base import Counted, LaunchCounts, Outcome, Program
from tuner.device.cuda.ncu_report import ReportReader
from tuner.device.cuda.tool_process import (
    PROGRAM,
    Ended,
    Job,
    ToolProcess,
    environment,
)
from tuner.device.layout import Arena, Layout
from tuner.model.kernel import Launch, Workload
from tuner.process.tally import note_start

# Each launch runs some twenty times, and what it wrote is put back in between.
TIMEOUT_S = 120.0
PAGE_TIMEOUT_S = 60.0
# A counter that this chip lacks ends a run before anything is counted; the next goes without it.
MOST_ATTEMPTS = 8

# Some of them would change what is counted.
_VARIABLES = "NV_COMPUTE_PROFILER"
# A kernel that does nothing, in a form that every driver compiles itself: a tool that may count
# nothing still starts and ends well as long as no kernel runs under it.
_PROBE = b".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry probe()\n{\nret;\n}\n\0"
_PROBE_LAUNCH = Launch("probe", (1, 1, 1), (32, 1, 1))
_PROBE_COUNTER = "smsp__inst_executed.sum"
_HOW = (
    "--target-processes=all",
    "--clock-control=none",  # the default sets the clocks, of a GPU that others may use
    "--cache-control=all",
    "--replay-mode=kernel",
    "--force-overwrite",
)
_OPTIONS = (*_HOW, "--apply-rules=no", "--section=SourceCounters")

# What is exported is printed only where a page of it is named.
_RAW_PAGE = ("--csv", "--page=raw", "--print-units=base")

_NAME_COLUMN = "Kernel Name"
_ADDRESS_COLUMN = "Address"
# The second is what it is called where warps were sampled alone.
_SAMPLES_COLUMNS = ("Warp Stall Sampling (Not-issued Samples)", "# Samples")
_EXECUTED_COLUMNS = ("Instructions Executed",)
_COUNTER = re.compile(r"[a-z][a-z0-9]*__\w")
_NUMBER = re.compile(r"-?\d+(,\d{3})*(\.\d+)?([eE][+-]?\d+)?")
_PLACE = re.compile(r"(0x)?[0-9a-fA-F]+")
_UNKNOWN = re.compile(r"Failed to find metric (?:regex:\^)?([\w.\\]+)")
_ERROR = re.compile(r"==ERROR== *(.*)")
# What follows from another error and explains nothing.
_CONSEQUENCES = (
    "An error occurred while trying to profile",
    "The application returned an error code",
    "Failed to profile",
)
NOT_FOUND = (
    "Nsight Compute (ncu) was not found: it comes with the CUDA toolkit; put its folder on PATH, "
    "or set CUDA_HOME"
)
NO_PERMISSION = "ERR_NVGPUCTRPERM"
PERMISSION_TEXT = (
    "the driver lets only administrators read the GPU's counters: run as root, or load the "
    "driver's module with NVreg_RestrictProfilingToAdminUsers=0 (in a container: also "
    "--cap-add=SYS_ADMIN)"
)


def raw_counters(text: str) -> list[tuple[str, dict[str, float]]]:
    """Read `--page raw --csv`: the kernel's name and the counters with a value of each launch."""
    launches = []
    for row in csv.DictReader(_table(text), restkey="", restval=""):
        if row.get("ID"):  # the row of units has no number
            read = {name: _number(cell) for name, cell in row.items() if _COUNTER.match(name)}
            values = {name: value for name, value in read.items() if value is not None}
            launches.append((row.get(_NAME_COLUMN, ""), values))
    return launches


def source_counts(text: str) -> list[LaunchCounts]:
    """Read `--page source --csv`: samples of warps that could not issue, and executions."""
    launches: list[LaunchCounts] = []
    by_column: dict[int, dict[int, int]] = {}
    address, start = -1, -1
    for row in csv.reader(_table(text)):
        if row[0] == _NAME_COLUMN and len(row) > 1:
            address = start = -1
            launches.append(LaunchCounts(row[1], {}))
        elif launches and _ADDRESS_COLUMN in row:
            address = row.index(_ADDRESS_COLUMN)
            samples: dict[int, int] = {}
            executed: dict[int, int] = {}
            launches[-1] = replace(launches[-1], samples=samples, executed=executed)
            by_column = {}
            for names, counts in ((_SAMPLES_COLUMNS, samples), (_EXECUTED_COLUMNS, executed)):
                column = next((row.index(name) for name in names if name in row), -1)
                by_column |= {column: counts} if column >= 0 else {}
        elif 0 <= address < len(row) and _PLACE.fullmatch(row[address]):
            place = int(row[address], 16)
            start = place if start < 0 else start
            for column, counts in by_column.items():
                if column < len(row) and (count := int(_number(row[column]) or 0)):
                    counts[place - start] = count
    return launches


def unknown_counters(text: str) -> list[str]:
    return [name.replace("\\", "") for name in _UNKNOWN.findall(text)]


def trouble(text: str) -> str:
    """Say in one line why the tool counted nothing, "" where it gives no cause."""
    if NO_PERMISSION in text:
        return PERMISSION_TEXT
    errors = [match[1].strip() for match in map(_ERROR.search, text.splitlines()) if match]
    causes = [line for line in errors if line and not line.startswith(_CONSEQUENCES)]
    return next(iter(causes), "")


def _table(text: str) -> Iterable[str]:
    return (line for line in text.splitlines() if line.startswith('"'))


def _number(cell: str) -> float | None:
    if not _NUMBER.fullmatch(cell.strip()):
        return None
    value = float(cell.replace(",", ""))
    return value if math.isfinite(value) else None


def find_ncu() -> Path | None:
    """Find the tool: on PATH, in the CUDA that the environment or /usr/local names, or alone."""
    return next((path for path in candidates("ncu") if executable(path)), None)


def profile_script(launches: Mapping[str, int]) -> str:
    """Write the script that has `ncu-ui` a report of each program that `save_jobs` wrote.

    `launches` counts those of a call. It runs wherever its folder lies.
    """
    tool = find_ncu() or "ncu"
    lines = ["#!/bin/sh", 'cd "$(dirname "$0")" || exit']
    for name, count in launches.items():
        # Names without a folder: of that, a comma would make two.
        options = (*_HOW, "--set=full", "--import-source=yes", f"--source-folders={name}")
        which = f"--export={name}", f"--launch-skip={count}", f"--launch-count={count}"
        watched = f'"${{PYTHON:-{sys.executable}}}" -P {PROGRAM} {name}'
        lines.append(f'"${{NCU:-{tool}}}" {" ".join((*options, *which))} {watched}')
    return "\n".join(lines) + "\n"


def run_profile(script: Path) -> str:
    """Run such a script; return what the tool says is wrong, or the program's last line."""
    ended = subprocess.run(  # noqa: S603 - what was written here
        ["/bin/sh", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_environment(),
        check=False,
    )
    said = ended.stdout.decode(errors="replace")
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith("==")]
    return trouble(said) or next(reversed(lines), "it says nothing")


class NsightCompute:
    """Count programs on one GPU; see `Counters` for the contract.

    `place_inputs` draws a program's arrays where another process can copy them.
    """

    def __init__(self, ordinal: int, place_inputs: Callable[[Program], Arena | Outcome]) -> None:
        self._ordinal, self._place_inputs = ordinal, place_inputs
        self._tool = find_ncu()
        self._reports = ReportReader(self._tool)
        self._process = ToolProcess()
        self._folder = TemporaryDirectory(prefix="tuner-counters-", ignore_cleanup_errors=True)
        self._file = Path(self._folder.name, "report.ncu-rep")
        self._refusal: str | None = None

    def refusal(self) -> str:
        if self._refusal is None:
            self._refusal = self._try_probe()
        return self._refusal

    def count(self, program: Program, names: Sequence[str]) -> Counted:
        """Count each launch of a call once; the same call ran before, on the same inputs."""
        if self._tool is None or self._refusal:
            return Counted(reason=self.refusal())
        arena = self._place_inputs(program)
        if isinstance(arena, Outcome):
            return Counted(reason=arena.reason)
        job = Job(program, arena.layout, arena)
        wanted = list(names)
        for _ in range(MOST_ATTEMPTS):
            ended = self._run((job, job), wanted, skip=len(program.launches))
            unknown = set(unknown_counters(_text(ended))).intersection(wanted)
            if not unknown:
                break
            wanted = [name for name in wanted if name not in unknown]
        counted = self._read_counters(ended, program.launches, wanted)
        if counted.launches:
            self._refusal = ""
            if not any(launch.executed for launch in counted.launches):
                counted = self._read_source_page(counted)
        elif reason := self.refusal():  # is it the program, or the tool?
            counted = Counted(reason=reason)
        return counted

    def close(self) -> None:
        self._process.close()
        self._folder.cleanup()

    def _try_probe(self) -> str:
        if self._tool is None:
            return NOT_FOUND
        launches = (_PROBE_LAUNCH,)
        program = Program("probe", Workload(()), launches, _PROBE, {_PROBE_LAUNCH.kernel: "probe"})
        job = Job(program, Layout((), (), 0), os.devnull)
        ended = self._run((job,), [_PROBE_COUNTER], skip=0)
        return self._read_counters(ended, launches, [_PROBE_COUNTER]).reason

    def _run(self, jobs: tuple[Job, ...], names: Sequence[str], skip: int) -> Ended:
        self._file.unlink(missing_ok=True)
        page = () if self._reports.serves else _RAW_PAGE
        command = [
            *(str(self._tool), *_OPTIONS, f"--metrics={','.join(names)}"),
            *(f"--launch-skip={skip}", f"--launch-count={len(jobs[-1].program.launches)}"),
            *(f"--export={self._file.with_suffix('')}", *page),
        ]
        return self._process.run(
            command, self._ordinal, jobs, self._file.parent, TIMEOUT_S, _environment()
        )

    def _read_counters(
        self, ended: Ended, launches: Sequence[Launch], names: Sequence[str]
    ) -> Counted:
        reason = _reason(ended)
        if reason or not self._file.is_file():
            return Counted(reason=reason or "Nsight Compute made no report")
        counted = self._reports.read(self._file, names)
        if counted is None:
            counted = self._read_raw_page(ended.said, len(launches), names)
        if len(counted) != len(launches):
            short = f"Nsight Compute counted {len(counted)} of {len(launches)} launches"
            return Counted(reason=short)
        if not any(launch.values for launch in counted):
            return Counted(reason="Nsight Compute gave no values")
        pairs = zip(counted, launches, strict=True)
        return Counted(tuple(replace(counts, kernel=launch.kernel) for counts, launch in pairs))

    def _read_raw_page(self, said: str, expected: int, names: Sequence[str]) -> list[LaunchCounts]:
        # Each start of the tool takes seconds, even to read a report.
        counters = raw_counters(said)
        if len(counters) != expected:
            counters = raw_counters(self._page("raw"))
        return [
            LaunchCounts(kernel, {name: values[name] for name in names if name in values})
            for kernel, values in counters
        ]

    def _read_source_page(self, counted: Counted) -> Counted:
        by_place = source_counts(self._page("source", "--print-source=sass"))
        if len(by_place) != len(counted.launches):
            return counted
        pairs = zip(counted.launches, by_place, strict=True)
        placed = (replace(a, samples=b.samples, executed=b.executed) for a, b in pairs)
        return Counted(tuple(placed))

    def _page(self, page: str, *options: str) -> str:
        shown = (f"--import={self._file}", "--csv", f"--page={page}", "--print-units=base")
        note_start(Path(str(self._tool)).name)
        try:
            ended = subprocess.run(  # noqa: S603 - the tool that was found
                [str(self._tool), *shown, *options],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=_environment(),
                timeout=PAGE_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return ended.stdout.decode(errors="replace")


def _environment() -> dict[str, str]:
    quiet = {"NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT": "1"}
    return {**environment(_VARIABLES), "LC_ALL": "C", **quiet}


def _text(ended: Ended) -> str:
    return f"{ended.said}\n{ended.words}"


def _reason(ended: Ended) -> str:
    if ended.timed_out:
        return f"Nsight Compute did not end within {TIMEOUT_S:g} s"
    if said := trouble(_text(ended)):
        return said
    if not ended.events:
        return f"Nsight Compute did not start: {ended.last_words or f'exit {ended.exit_code}'}"
    failures = (event["error"] for event in ended.events_of("failed"))
    return next((f"failed under Nsight Compute: {error}" for error in failures), "")
