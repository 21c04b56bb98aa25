"""A plugin of pytest that tells the CPU time of the tests by folder, and fails above a budget.

The time of a process that a test started counts where it has ended.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

OVER_BUDGET = 6  # pytest's own codes end at 5


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("CPU time")
    group.addoption("--cpu-time", action="store_true", help="tell the CPU time by folder")
    group.addoption("--cpu-budget", type=float, metavar="MINUTES", help="fail above this CPU time")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CpuTime(config))


def used_s() -> float:
    """Return the CPU time of this process and of all that it started and that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class CpuTime:
    """What the tests took, and the processes that run them, pytest-xdist's among them."""

    def __init__(self, config: pytest.Config) -> None:
        self._budget_min: float | None = config.getoption("--cpu-budget")
        self._is_wanted = config.getoption("--cpu-time") or self._budget_min is not None
        self._before = 0.0
        self._workers_s = 0.0
        self._by_folder: Counter[str] = Counter()

    def pytest_runtest_logstart(self) -> None:
        self._before = used_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        report = yield
        now = used_s()
        report.cpu_s, self._before = now - self._before, now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        folder = report.nodeid.partition("::")[0].rpartition("/")[0]
        self._by_folder[folder] += getattr(report, "cpu_s", 0.0)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._workers_s += getattr(node, "workeroutput", {}).get("cpu_s", 0.0)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["cpu_s"] = used_s()
        elif self._budget_min is not None and self._total_s() > 60 * self._budget_min:
            session.exitstatus = OVER_BUDGET

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._is_wanted:
            return
        total_s = self._total_s()
        terminalreporter.section("CPU time by folder")
        for folder, seconds in self._by_folder.most_common():
            if seconds >= 1.0:
                terminalreporter.line(f"{seconds:7.0f} s  {folder}")
        rest_s = total_s - self._by_folder.total()
        terminalreporter.line(f"{rest_s:7.0f} s  collecting, and what outlives its test")
        budget = f", of a budget of {self._budget_min:g}" if self._budget_min is not None else ""
        terminalreporter.line(f"{total_s / 60:7.1f} minutes in all{budget}")

    def _total_s(self) -> float:
        times = os.times()
        return self._workers_s + times.user + times.system if self._workers_s else used_s()
