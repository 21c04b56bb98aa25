"""Render the prompts beside this file, with their ways to write numbers, names and texts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from ruamel.yaml import YAML

from tuner.extensions.agents.sections import OWN_SECTIONS, sections_of
from tuner.model.errors import SpaceError
from tuner.model.kernel import Workload
from tuner.report.formatting import pairs
from tuner.space.yaml import parse

if TYPE_CHECKING:
    from jinja2 import Environment

_TICKS = re.compile("`+")
_COMMENT = re.compile(r"[ \t]*#[^\n]*")
_LONG_LINE = re.compile(r"^(.{160})(.{160,})$", re.MULTILINE)
# As Jinja counts them; `splitlines` also ends lines at form feeds, which no compiler does.
_LINE_ENDS = re.compile("\r\n|\r|\n")


def prompt(name: str, **values: object) -> str:
    """Write the prompt `name`, with values put in as they are."""
    return _environment().get_template(f"{name}.md.j2").render(**values).strip()


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    # Nothing here is HTML: escaping would change the code that is put in.
    environment = Environment(
        loader=PackageLoader("tuner.extensions.agents", "prompts"),
        autoescape=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    written = (
        clip_text,
        fence_text,
        join_names,
        microseconds,
        one_line,
        own_sections,
        pairs,
        quote_text,
        shorten_lines,
        size,
        table,
    )
    environment.globals.update({function.__name__: function for function in written})
    return environment


def fence_text(text: str, word: str) -> str:
    """Put a text in a fenced block that nothing inside of it can close."""
    ticks = _fence(text)
    return f"{ticks}{word}\n{text.rstrip()}\n{ticks}"


def microseconds(value: float | None) -> str:
    """Write a time with three or four digits, without its unit; `-` where there is none."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 10 else f"{value:.3f}"


def percent(share: float) -> str:
    """Write a share: `71 %`, and one decimal below two."""
    return f"{share * 100:.1f} %" if share < 0.02 else f"{share * 100:.0f} %"


def join_names(names: Iterable[str], most: int = 4, comma: str = ", ") -> str:
    """List the first few names: `a, b and 4 more`."""
    known = list(names)
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return comma.join(known[:most]) + more


def keys(workloads: Iterable[Workload]) -> str:
    """List the first few workloads, as files are keyed by them."""
    return join_names((workload.key for workload in workloads), most=3, comma="; ")


def one_line(text: str, most: int = 160) -> str:
    """Put a text into one line of at most so many characters; what is cut shows as `...`."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3].rstrip() + "..."


def clip_text(text: str, most: int, rest: str) -> str:
    """Keep whole lines up to so many characters and say what was cut; `rest` says where it is."""
    if len(text) <= most:
        return text
    lines = _LINE_ENDS.split(text)
    if not lines[-1]:
        lines.pop()
    ends = accumulate(len(line) + 1 for line in lines)
    kept = [line for line, end in zip(lines, ends, strict=True) if end <= most]
    cut = len(lines) - len(kept)
    return "\n".join([*kept, f"[cut here: {cut} of {len(lines)} lines left out; {rest}]"])


def shorten_lines(text: str) -> str:
    """Cut what no reader can use out of very long lines, such as packed constants."""
    return _LONG_LINE.sub(lambda line: f"{line[1]}[{len(line[2]):,} characters left out]", text)


def quote_text(text: str, language: str, what: str) -> str:
    """Quote a text that may say anything, so that nothing in it can end the quotation.

    The fence is longer than any run of backticks inside, and both ends carry a digest of the text,
    which the text cannot contain.
    """
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]
    fence = _fence(text)
    body = text if text.endswith("\n") else text + "\n"
    return f"{what}, up to `end {digest}`:\n\n{fence}{language}\n{body}{fence}\nend {digest}"


def own_sections(space: str) -> str:
    """Cut a search space down to the sections that are the agent's, without comments.

    One that cannot be read is left as it is.
    """
    try:
        sections = sections_of(parse(space, Path("space.yaml")))
    except SpaceError:
        return space
    text = "".join(body for key, body in sections.items() if key in OWN_SECTIONS)
    kept, place = [], 0
    for token in YAML(typ="safe", pure=True).scan(text):
        # Between tokens there is nothing but white space and comments.
        kept.append(_COMMENT.sub("", text[place : token.start_mark.index]))
        kept.append(text[token.start_mark.index : token.end_mark.index])
        place = max(place, token.end_mark.index)
    return "\n".join(line.rstrip() for line in "".join(kept).split("\n") if line.strip())


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    safe = ([cell.replace("|", "\\|") for cell in cells] for cells in lines)
    return "\n".join(f"|{'|'.join(cells)}|" for cells in safe)


def size(count_bytes: int) -> str:
    """Write a number of bytes: `2.1 MB`."""
    value = float(count_bytes)
    for unit in ("bytes", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def _fence(text: str) -> str:
    longest = max(map(len, _TICKS.findall(text)), default=0)
    return "`" * max(longest + 1, 3)
