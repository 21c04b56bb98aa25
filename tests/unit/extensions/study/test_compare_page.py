"""The page of a comparison: the table, a chart per space, and nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.caches import cache, written
from tests.support.drawings import of_class, parsed, texts
from tuner.extensions.study.compare_page import (
    COLORS,
    MOST_POINTS,
    Curve,
    render_comparison,
    rows_of,
    search_curves,
)
from tuner.extensions.study.comparison import ReplaySettings, SearcherComparison, replay_all
from tuner.extensions.study.recorded_spaces import load_spaces
from tuner.report.pages import write_page


def made(tmp_path: Path, *names: str) -> SearcherComparison:
    """Compare two methods on a cache of each name."""
    paths = [written(tmp_path / f"{name}.json", cache()) for name in names]
    spaces = [space for path in paths for space in load_spaces(path, lambda _: None)]
    return replay_all(ReplaySettings(("random", "exhaustive"), seeds=3, trials=10), spaces)


def test_one_recording_has_one_chart_and_its_scores(tmp_path: Path) -> None:
    comparison = made(tmp_path, "a100")
    html = render_comparison(comparison, "tune compare --recording a100.json")
    assert html.count("<svg") == 1
    assert "tune compare --recording a100.json" in html
    score = comparison.overall()["exhaustive"].score
    assert f'<td>exhaustive</td><td class="n">{score:.3f}</td>' in html
    assert [label for label, _ in rows_of(comparison)] == ["a100"]


def test_several_recordings_have_a_chart_each_and_one_of_their_mean(tmp_path: Path) -> None:
    comparison = made(tmp_path, "a100", "h100")
    html = render_comparison(comparison)
    assert html.count("<svg") == 3
    assert "Mean of all spaces" in html
    assert [label for label, _ in rows_of(comparison)] == ["a100", "h100", "all"]


def test_it_needs_no_script_and_no_network_and_names_are_escaped(tmp_path: Path) -> None:
    html = render_comparison(made(tmp_path, "<b>&"), "tune '<script>'")
    assert "<script" not in html
    assert "<b>" not in html
    assert not re.search(r'(src|href)="(?!data:)', html)
    assert "default-src &#39;none&#39;" in html


def test_it_is_written_with_its_folder_and_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "new/compare.html"
    write_page(render_comparison(made(tmp_path, "a100")), path)
    assert [p.name for p in path.parent.iterdir()] == ["compare.html"]
    with pytest.raises(OSError):
        write_page(render_comparison(made(tmp_path, "a100")), tmp_path / "a100.json/compare.html")


def chart(trials: int, *shares: float):
    curves = [Curve(f"m{i}", np.full((3, trials), share)) for i, share in enumerate(shares)]
    return parsed(search_curves("k", curves, np.linspace(0.5, 0.9, trials)))


def test_every_method_has_a_median_and_a_band_beside_randoms_and_the_optimum() -> None:
    root = chart(20, 0.8, 1.0)
    for name, count in (("median", 2), ("band", 2), ("expected", 1), ("optimum", 1)):
        assert len(of_class(root, name)) == count
    titles = ["".join(e.itertext()) for e in root.iter("title")]
    assert "m0: 0.800 after 20 trials" in titles
    assert root.get("aria-label") == "Share of the optimum for k: m0 0.800, m1 1.000"
    assert "trials" in texts(root)


def test_a_better_method_is_drawn_above_and_the_optimum_above_all() -> None:
    root = chart(20, 0.7, 0.9)
    low, high = (float(e.get("d").split("L")[-1].split()[1]) for e in of_class(root, "median"))
    (optimum,) = of_class(root, "optimum")
    assert float(optimum.get("y1")) < high < low


@pytest.mark.parametrize("trials", [1, 2, 10_000])
def test_any_number_of_trials_makes_a_chart_of_bounded_size(trials: int) -> None:
    (line,) = of_class(chart(trials, 0.9), "median")
    assert 0 <= line.get("d").count("L") < MOST_POINTS


def test_more_methods_than_colors_start_over() -> None:
    root = chart(5, *[0.9] * (COLORS + 1))
    assert len(of_class(root, "c0")) == 4
