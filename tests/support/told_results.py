"""What a run tells in its console table and its page, as a reader sees it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import unescape

Cells = dict[str, str]

NUMBER = re.compile(r"[\d,]*\.?\d+")
INTERVAL = re.compile(r"\[([\d.]+), ([\d.]+)\]")
# A result's line: its times, the speedup with its interval, the roofline, and the time alone where
# there is one.
CONSOLE_ROW = re.compile(
    r"^.*? +(?P<baseline>[\d,.]+) +(?P<tuned>[\d,.]+) +(?P<speedup>[\d.]+x)"
    r" +(?P<interval>\[[\d.]+, [\d.]+\]) +(?P<roofline>[\d.]+ %|-)"
    r"(?: +(?P<alone>[\d,.]+|-|only)(?: [\d.]+x)?)? .*$",
    re.MULTILINE,
)
VALUE = re.compile(r"^[\d,]+ \((?P<roofline>[\d.]+ %)\); (?P<us>[\d,.]+) us, floor (?P<floor>.+)$")


def numbers(text: str) -> list[float]:
    """Read all numbers of a text, with commas between thousands."""
    return [float(found.replace(",", "")) for found in NUMBER.findall(text)]


def bounds(text: str) -> list[float]:
    """Read an interval."""
    found = INTERVAL.search(text)
    assert found is not None, text
    return [float(bound) for bound in found.groups()]


@dataclass(frozen=True)
class Marker:
    """A marker of a chart: what it claims by its fill and colour, and what it is titled."""

    claim: str
    title: str


class ToldPage:
    """The report of a run: its sentences, tables and charts."""

    def __init__(self, html: str) -> None:
        self._html = html

    def text_of(self, name: str) -> str:
        """Return the text of the one paragraph of a class, "" where there is none."""
        found = re.search(rf'<p class="{name}[^"]*">(.*?)</p>', self._html, re.DOTALL)
        return _plain(found[1]) if found else ""

    def rows_of(self, label: str) -> list[Cells]:
        """Return the rows of the table that a reader is told by this label, by its headers."""
        at = self._html.find(f'aria-label="{label}"')
        if at < 0:
            return []
        head, _, body = self._html[at : self._html.index("</table>", at)].partition("<tbody>")
        names = [_plain(cell) for cell in re.findall(r"<th[^>]*>(.*?)</th>", head)]
        rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
        cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
        return [dict(zip(names, map(_plain, row), strict=True)) for row in cells]

    def note_after(self, label: str) -> str:
        """Return the note below the table of this label."""
        at = self._html.index(f'aria-label="{label}"')
        return _plain(self._html[self._html.index('<p class="note">', at) :].partition("</p>")[0])

    def markers_of(self, label: str) -> list[Marker]:
        """Return the markers of the chart of this label."""
        found = re.findall(r'class="marker([^"]*)"><title>(.*?)</title>', self._chart(label))
        claims = {"unsure": "none", "lost": "slower", "": "faster"}
        return [
            Marker(claims[kind.replace(" held", "").strip()], unescape(title))
            for kind, title in found
        ]

    def values_of(self, label: str) -> list[str]:
        """Return what is written beside the bars of the chart of this label."""
        return [_plain(text) for text in re.findall(r'class="value">(.*?)<', self._chart(label))]

    def _chart(self, label: str) -> str:
        at = self._html.find(f'aria-label="{label}"')
        return "" if at < 0 else self._html[at : self._html.index("</svg>", at)]


def _plain(html: str) -> str:
    text = unescape(re.sub(r"<[^>]*>", "", html))
    return " ".join(text.replace("\u00a0", " ").split())
