"""The page of a comparison: the table of scores and the curves, in one HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tuner.comparing.comparison import Comparison, SpaceResult
from tuner.comparing.scores import Score, half
from tuner.comparing.spaces import recording_name
from tuner.report import wording
from tuner.report.page import content_security_policy, write_page
from tuner.report.search_curves import COLORS, Curve, search_curves

Row = tuple[str, Mapping[str, Score]]


def write_comparison(comparison: Comparison, path: Path, command: str = "") -> None:
    """Write the page of a comparison to `path`; raise `OSError` where that fails."""
    write_page(render_comparison(comparison, command), path)


def render_comparison(comparison: Comparison, command: str = "") -> str:
    """Make the page's HTML; every text from outside is escaped."""
    sheets = ("style.css", "compare.css")
    style = "".join(files("tuner.report").joinpath(name).read_text("utf-8") for name in sheets)
    settings = comparison.settings
    return (
        _environment()
        .get_template("compare.html.j2")
        .render(
            style=Markup(style),
            policy=content_security_policy(style),
            settings=settings,
            half=half(settings.trials),
            rows=rows_of(comparison),
            legend=[(name, index % COLORS) for index, name in enumerate(settings.searchers)],
            overview=_overview(comparison) if len(comparison.results) > 1 else None,
            charts=[_chart(result) for result in comparison.results],
            spaces=[_facts(result) for result in comparison.results],
            command=command,
        )
    )


def rows_of(comparison: Comparison) -> list[Row]:
    """List the rows of the table: each recording, and the mean of several."""
    recordings = comparison.by_recording()
    rows: list[Row] = [(recording_name(Path(path)), scores) for path, scores in recordings.items()]
    return rows if len(rows) == 1 else [*rows, ("all", comparison.overall())]


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("tuner", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(us=wording.microseconds)
    return environment


def _chart(result: SpaceResult) -> tuple[str, Markup]:
    optimum_us = result.space.optimum_us
    curves = [Curve(one.searcher, optimum_us / one.found_us) for one in result.methods]
    label = result.space.label
    return label, search_curves(label, curves, optimum_us / result.random_us)


def _overview(comparison: Comparison) -> Markup:
    """Draw the mean of the spaces, seed by seed."""
    results = comparison.results
    curves = [
        Curve(name, np.mean([_shares(result, index) for result in results], axis=0))
        for index, name in enumerate(comparison.settings.searchers)
    ]
    random = np.mean([r.space.optimum_us / r.random_us for r in results], axis=0)
    return search_curves(f"{len(results)} spaces", curves, random, large=True)


def _shares(result: SpaceResult, method: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return result.space.optimum_us / result.methods[method].found_us


def _facts(result: SpaceResult) -> dict[str, object]:
    space = result.space
    return {
        "label": space.label,
        "configs": len(space.pool),
        "failed": space.failed,
        "optimum_us": space.optimum_us,
        "random_us": float(result.random_us[-1]),
    }
