"""Reading the SVG of a chart."""

from __future__ import annotations

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
