"""Machine code beside the source: the lines that became more or less of it."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from tuner.analysis.base import INSTRUCTION_CLASSES, OTHER
from tuner.analysis.sass import Instruction, class_of
from tuner.report.data import ReportData
from tuner.report.tables import Column, Field, list_table
from tuner.session.events import CodeLine, MachineCodeCompared

# Slow ones come first.
_CLASSES = (*INSTRUCTION_CLASSES, OTHER)
LINES_SHOWN = 12
OPCODES_SHOWN = 6


def machine_code_tables(data: ReportData) -> list[tuple[str, Markup]]:
    """Lay out the lines that differ most, a table for each winner that was compared."""
    return [
        (
            "{}: {} instructions where the baseline has {}, for {}".format(
                comparison.workload.replace(",", " "),
                *reversed(comparison.instructions),
                comparison.architecture,
            ),
            _lines_table(comparison),
        )
        for comparison in data.machine_code
    ]


def _lines_table(of: MachineCodeCompared) -> Markup:
    def number(line: int | None) -> str:
        return "-" if line is None else str(line)

    def more(line: CodeLine) -> str:
        return f"{sum(line.after.values()) - sum(line.before.values()):+}".replace("-", "\u2212")

    fields: list[Field[CodeLine]] = [
        Field(Column("Source", css="config"), lambda line: line.text),
        Field(Column("Instructions", numeric=True), more),
        Field(Column("Line before", numeric=True), lambda line: number(line.line_before)),
        Field(Column("after", numeric=True), lambda line: number(line.line_after)),
        Field(Column("Baseline's code", css="config"), lambda line: _opcodes(line.before)),
        Field(Column("Winner's code", css="config"), lambda line: _opcodes(line.after)),
    ]
    return list_table(f"Machine code on {of.workload}", of.lines[:LINES_SHOWN], fields)


def _opcodes(counts: Mapping[str, int]) -> str:
    """Write accesses of memory first, then arithmetic: `LDG.E.128 x 2, FMUL`."""

    def rank(item: tuple[str, int]) -> tuple[int, int]:
        return _CLASSES.index(class_of(Instruction(0, item[0]))), -item[1]

    ranked = sorted(counts.items(), key=rank)
    texts = [f"{name}\u00a0x\u00a0{count}" if count > 1 else name for name, count in ranked]
    rest = sum(count for _, count in ranked[OPCODES_SHOWN:])
    return ", ".join(texts[:OPCODES_SHOWN]) + (f", {rest} more" if rest else "") or "none"
