"""Reading the SVG of a chart and the HTML of a page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree.ElementTree import Element, fromstring


def parsed(chart: str) -> Element:
    """Parse a chart; what is not well formed raises."""
    return fromstring(chart)  # noqa: S314 (our own)


def texts(root: Element) -> list[str]:
    """List what is written in a chart."""
    return ["".join(element.itertext()) for element in root.iter("text")]


def of_class(root: Element, name: str) -> list[Element]:
    """Find the elements of a class."""
    return [e for e in root.iter() if name in (e.get("class") or "").split()]


VOID = {"meta", "link", "br", "wbr"}


class Page(HTMLParser):
    """Collect the elements, texts and attributes; complain about a tag out of place."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[str] = []
        self.text = ""
        self.feed(content)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "br":
            self.text += " "

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag in {"th", "td"}:
            self.text += " "

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in {"style", "script"}:
            return
        self.text += data
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)

    @property
    def plain(self) -> str:
        """All text, with single spaces."""
        return re.sub(r"\s+", " ", self.text)

    def tags(self) -> set[str]:
        """Name the elements."""
        return {tag for tag, _ in self.elements}


def shown(html: str, *headings: str) -> str:
    """Write a page, or sections of it, as it is read: a row a line, charts by their names."""
    html = re.sub(r'<svg[^>]*aria-label="([^"]*)".*?</svg>', r"[\1]", html, flags=re.DOTALL)
    html = re.sub(r"<tr.*?</tr>", lambda row: " ".join(row[0].split()), html, flags=re.DOTALL)
    parts = Page(html.replace("<section", "\0<section")).text.split("\0")
    lines = [[" ".join(line.split()) for line in part.splitlines()] for part in parts]
    kept = ["\n".join(filter(None, part)) for part in lines]
    return "\n\n".join(one for one in kept if not headings or one.startswith(headings))
