"""The few SVG pieces that the charts are made of; colors come from the style sheet by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from xml.etree.ElementTree import Element, SubElement, tostring

from markupsafe import Markup


@dataclass(frozen=True, slots=True)
class Scale:
    """Map values between `low` and `high` to pixels between `start` and `end`; clamps."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.logarithmic:
            low, high, at = log10(low), log10(high), log10(at)
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def canvas(width: int, height: int, label: str, css_class: str = "") -> Element:
    """Start a chart that a screen reader announces by `label`."""
    attributes = {"viewBox": f"0 0 {width} {height}", "role": "img", "aria-label": label}
    if css_class:
        attributes["class"] = css_class
    return Element("svg", attributes)


def markup(root: Element) -> Markup:
    """Serialize a chart; text and attributes are escaped by the serializer."""
    return Markup(tostring(root, encoding="unicode"))


def text(
    parent: Element,
    at: tuple[float, float],
    content: str,
    css_class: str = "",
    anchor: str = "start",
) -> Element:
    """Write text whose baseline starts, has its middle or ends `at` a point."""
    attributes = {"x": _number(at[0]), "y": _number(at[1]), "text-anchor": anchor}
    if css_class:
        attributes["class"] = css_class
    element = SubElement(parent, "text", attributes)
    element.text = printable(content)
    return element


def line(
    parent: Element, start: tuple[float, float], end: tuple[float, float], css_class: str
) -> Element:
    """Draw a straight line."""
    (x1, y1), (x2, y2) = start, end
    ends = {"x1": _number(x1), "y1": _number(y1), "x2": _number(x2), "y2": _number(y2)}
    return SubElement(parent, "line", {**ends, "class": css_class})


def rectangle(
    parent: Element, corner: tuple[float, float], width: float, height: float, css_class: str
) -> Element:
    """Draw a bar."""
    box = {"x": corner[0], "y": corner[1], "width": max(width, 0.0), "height": height}
    numbers = {name: _number(value) for name, value in box.items()}
    return SubElement(parent, "rect", {**numbers, "rx": "2", "class": css_class})


def circle(parent: Element, x: float, y: float, radius: float, css_class: str) -> Element:
    """Draw a round marker."""
    where = {"cx": _number(x), "cy": _number(y), "r": _number(radius)}
    return SubElement(parent, "circle", {**where, "class": css_class})


def diamond(parent: Element, x: float, y: float, radius: float, css_class: str) -> Element:
    """Draw a diamond marker."""
    corners = ((x, y - radius), (x + radius, y), (x, y + radius), (x - radius, y))
    return path(parent, "M" + "L".join(point(*corner) for corner in corners) + "Z", css_class)


def path(parent: Element, commands: str, css_class: str) -> Element:
    """Draw a path."""
    return SubElement(parent, "path", {"d": commands, "class": css_class})


def axes(
    root: Element,
    x: Scale,
    y: Scale,
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
) -> None:
    """Draw a chart's ticks, their grid and the line at the bottom."""
    for tick in y_ticks:
        line(root, (x.start, y(tick)), (x.end, y(tick)), "grid")
        text(root, (x.start - 6, y(tick) + 4), tick_label(tick), "axis", "end")
    for tick in x_ticks:
        text(root, (x(tick), y.start + 15), tick_label(tick), "axis", "middle")
    line(root, (x.start, y.start), (x.end, y.start), "frame")


def tooltip(element: Element, content: str) -> None:
    """Name an element for the pointer and for screen readers."""
    SubElement(element, "title").text = printable(content)


def point(x: float, y: float) -> str:
    """Write a point of a path."""
    return f"{_number(x)} {_number(y)}"


def ticks(low: float, high: float, count: int = 5) -> tuple[float, ...]:
    """Choose about `count` round values between `low` and `high`."""
    if high <= low:
        return (low,)
    rough = (high - low) / count
    magnitude = 10.0 ** floor(log10(rough))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= rough * 0.999)
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return tuple(index * step for index in range(first, last + 1))


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Choose 1, 2 and 5 times powers of ten; beyond three decades the powers alone."""
    multiples: Sequence[int] = (1, 2, 5) if log10(high / low) < 3 else (1,)
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    values = (m * 10.0**decade for decade in decades for m in multiples)
    return tuple(value for value in values if low <= value <= high)


def tick_label(value: float) -> str:
    """Write a tick without needless zeros."""
    if value != 0 and not 0.001 <= abs(value) < 1e6:
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    return f"{value:,.4f}".rstrip("0").rstrip(".")


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def printable(content: str) -> str:
    """Drop the control characters that XML cannot hold."""
    return "".join(c if c >= " " or c in "\t\n" else "?" for c in content)
