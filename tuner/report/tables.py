"""The one writer of tables: a row's cells become its line, or on a narrow screen its list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from markupsafe import Markup, escape

from tuner.report.formatting import printable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Column:
    """A column by its head; numbers stand at the right, and a `css` class is each cell's."""

    head: str
    numeric: bool = False
    css: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in a table, with the number that it sorts by; `wide` reaches to the end."""

    text: str
    value: float | None = None
    css: str = ""
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Field(Generic[T]):
    """A column with what it says of each of the things that a table lists."""

    column: Column | str
    cell: Callable[[T], Cell | str | int]


def list_table(
    label: str,
    things: Iterable[T],
    fields: Sequence[Field[T]],
    *,
    css: str = "",
    sorts: bool = False,
) -> Markup:
    """Write a table of one row for each thing; nothing where there is none."""
    rows = [[field.cell(thing) for field in fields] for thing in things]
    columns = [field.column for field in fields]
    return write_table(label, columns, rows, css=css, sorts=sorts) if rows else Markup("")


def write_table(
    label: str,
    columns: Iterable[Column | str],
    rows: Iterable[Sequence[Cell | str | int]],
    *,
    css: str = "",
    sorts: bool = False,
) -> Markup:
    """Write a table; the first cell of a row names it, and `label` says what the table is.

    Every text is escaped but `Markup`. One that `sorts` has a button in each head.
    """
    heads = [column if isinstance(column, Column) else Column(column) for column in columns]
    head_cells = []
    for head in heads:
        text = breakable(head.head) if "_" in head.head else escape(head.head)
        inside = f'<button type="button">{text}</button>' if sorts and head.head else text
        numeric = _class_of("n" if head.numeric else "")
        head_cells.append(f'<th scope="col"{numeric}>{inside}</th>')
    lines = [
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">',
        f"<table{_class_of('listed', css, 'sorts' if sorts else '')}>",
        f"<thead><tr>{''.join(head_cells)}</tr></thead>",
        "<tbody>",
        *(f"<tr>{''.join(_write_cells(row, heads))}</tr>" for row in rows),
        "</tbody>\n</table>\n</div>",
    ]
    return Markup("\n".join(lines))


def tag(text: str, *, bad: bool = False) -> Markup:
    """Mark a cell with a word in a frame."""
    return Markup('<span class="tag{}">{}</span>').format(" bad" if bad else "", text)


def soft(text: str) -> Markup:
    return Markup('<span class="soft">{}</span>').format(text)


def join(*parts: str) -> Markup:
    return Markup(" ").join(part for part in parts if part)


def breakable(name: str) -> Markup:
    """Let a line break behind each underscore of a name."""
    return Markup("_<wbr>").join(name.split("_"))


def _write_cells(row: Sequence[Cell | str | int], heads: Sequence[Column]) -> Iterable[str]:
    for index, (cell, head) in enumerate(zip(row, heads, strict=False)):
        one = Cell(f"{cell:,}") if isinstance(cell, int) else cell
        one = Cell(one) if isinstance(one, str) else one
        text = one.text if isinstance(one.text, Markup) else escape(printable(one.text))
        classes = _class_of("n" if head.numeric else "", head.css, one.css)
        value = "" if one.value is None else f' data-value="{one.value:.6g}"'
        reach = f' colspan="{len(heads) - index}"' if one.wide else ""
        if index == 0:
            yield f'<th scope="row"{classes}{value}{reach}>{text}</th>'
        else:
            said = "" if one.wide else f' data-label="{escape(head.head)}"'
            yield f"<td{classes}{said}{value}{reach}>{text}</td>"


def _class_of(*names: str) -> str:
    found = " ".join(filter(None, names))
    return f' class="{found}"' if found else ""
