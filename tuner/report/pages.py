"""Pages and charts from templates: one HTML file each, which opens without a network."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from tuner.model.config import format_value
from tuner.model.expressions import Value
from tuner.process.files import atomic_write
from tuner.report import formatting


def render_page(
    template: str, style_sheets: Sequence[str], script: str = "", **values: object
) -> str:
    """Render a template that extends `page.html.j2`, with its style sheets and script inside.

    Its policy lets nothing else run, whatever a record says.
    """
    folder = files("tuner.report")
    style = "".join(folder.joinpath(name).read_text("utf-8") for name in style_sheets)
    code = folder.joinpath(script).read_text("utf-8") if script else ""
    scripts = f"script-src '{_digest(code)}'; " if code else ""
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; {scripts}"
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    inside = {"style": Markup(style), "script": Markup(code), "policy": policy}
    return _environment().get_template(template).render(**inside, **values)


def render_part(template: str, **values: object) -> Markup:
    """Render a piece of a page; every text from outside is escaped."""
    return Markup(_environment().get_template(template).render(**values))


def fragment(html: Markup) -> str:
    """Put a piece of a page into somebody else's, with its style, which holds inside it alone."""
    style = files("tuner.report").joinpath("style.css").read_text("utf-8")
    for own in (":root", "body"):
        style = re.sub(rf"^( *){own} {{", r"\1& {", style, flags=re.MULTILINE)
    return f'<style>.tune-part {{ {style} }}</style><div class="tune-part">{html}</div>'


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def write_page(html: str, path: Path) -> None:
    """Write a page to `path`, replacing what was there in one step; make its folder.

    Raises `OSError` where it cannot, with what was there before left as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # surrogates, which a compiler's output may hold, have no UTF-8
    atomic_write(path, html.encode("utf-8", errors="replace"))


def draw(chart: str, **values: object) -> Markup:
    return render_part(f"{chart}.svg.j2", **values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("tuner", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    numbers = (formatting.ratio, formatting.percent, formatting.seconds, formatting.significant)
    texts = (
        formatting.interval,
        formatting.shorten_text,
        formatting.cut,
        formatting.printable,
        formatting.times,
    )
    environment.filters.update({one.__name__: one for one in (*numbers, *texts)})
    environment.filters.update(us=formatting.microseconds, pairs=write_pairs)
    environment.filters.update(n=formatting.coordinate, tick=formatting.tick_label, code=mark_code)
    return environment


def mark_code(text: str) -> Markup:
    """Write a text whose commands stand between backticks."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def write_pairs(config: Mapping[str, Value]) -> Markup:
    """Write a config so that a line never breaks inside `name=value`."""
    pairs = (escape(f"{name}={format_value(value)}") for name, value in config.items())
    return Markup(" ").join(Markup('<span class="pair">{}</span>').format(pair) for pair in pairs)
