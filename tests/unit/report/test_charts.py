"""Charts keep their scales, their labels and their size on ordinary and odd values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.drawings import of_class, parsed, texts
from tests.unit.report.conftest import make_result
from tuner.model.kernel import Workload
from tuner.model.trial import Result
from tuner.report import charts, formatting


def test_a_scale_maps_its_ends_and_clamps():
    scale = charts.Scale(0.0, 10.0, 100.0, 200.0)
    assert [scale(value) for value in (0, 5, 10, 99, -1)] == [100, 150, 200, 200, 100]
    logarithmic = charts.Scale(1.0, 100.0, 0.0, 10.0, True)
    assert logarithmic(10.0) == pytest.approx(5.0)
    assert charts.Scale(3.0, 3.0, 0.0, 10.0)(3.0) == 5.0


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, (0, 2, 4, 6, 8, 10)),
        (0.97, 1.03, (0.98, 1.0, 1.02)),
        (5, 5, (5,)),
    ],
)
def test_ticks_are_round(low, high, expected):
    assert charts.ticks(low, high) == pytest.approx(expected)


def test_log_ticks_thin_out_over_many_decades():
    assert charts.log_ticks(0.9, 11) == pytest.approx((1, 2, 5, 10))
    assert charts.log_ticks(1, 1e4) == pytest.approx((1, 10, 100, 1000, 10000))


@pytest.mark.parametrize(
    ("value", "label"), [(0.0, "0"), (2.50, "2.5"), (4000.0, "4,000"), (1e7, "1e7"), (1e-5, "1e-5")]
)
def test_tick_labels_have_no_needless_zeros(value, label):
    assert formatting.tick_label(value) == label


def test_the_line_at_one_is_always_in_the_speedup_chart():
    rows = [charts.Speedup("T=1", 40.0, (39.0, 41.0), False, True)]
    root = parsed(charts.speedups(rows))
    assert len(of_class(root, "one")) == 1
    assert "40.00x [39.00, 41.00]" in texts(root)


def timed(tokens: int, baseline_us: float, tuned_us: float) -> Result:
    made = make_result(Workload.of({"T": tokens, "D": 1}), 1.0)
    return replace(made, baseline_us=baseline_us, tuned_us=tuned_us)


def test_a_rate_over_the_streaming_rate_stays_on_the_chart():
    root = parsed(charts.throughputs([timed(1, 1.2, 1.0)], {"T=1,D=1": 6_000_000}, 4000.0))
    (bar,) = of_class(root, "bar")
    assert float(bar.get("x", "")) + float(bar.get("width", "")) < charts.WIDTH
    assert "streaming 4,000 GB/s" in texts(root)


@pytest.mark.parametrize(("gflops", "drawn"), [(1000.0, True), (900_000.0, False)])
def test_a_peak_is_drawn_where_the_memory_reaches_it(gflops: float, drawn: bool) -> None:
    results, known = [timed(1, 1.0, 0.5)], {"T=1,D=1": 1000}
    root = parsed(charts.roofline(results, known, known, 4000.0, ("bf16", gflops)))
    assert ("bf16 1 TFLOP/s" in texts(root)) is drawn
    assert len(of_class(root, "roof")) == 1 + drawn


def test_the_pictures_of_charts(golden):
    results = [timed(t, 1.0 / t, 0.5 / t) for t in (1, 2, 3)]
    bytes_, operations = ({f"T={t},D=1": count for t in (1, 2, 3)} for count in (200, 100))
    speedups = [
        charts.Speedup("a", 1.5, (1.4, 1.6), False, True),
        charts.Speedup("b", 1.0, (0.9, 1.1), True, False),
    ]
    golden("roofline.svg", charts.roofline(results, bytes_, operations, 4000.0))
    golden("throughputs.svg", charts.throughputs(results, bytes_, 4000.0))
    golden("speedups.svg", charts.speedups(speedups))


def test_labels_are_escaped_and_long_ones_are_cut_with_the_whole_in_a_tooltip():
    label = "<script>alert(1)</script>" + "x" * 40 + "\x00"
    drawn = charts.bars("title", [charts.Bar(label, 1.0, "&")])
    root = parsed(drawn)
    assert "<script" not in drawn
    assert any(label.replace("\x00", "?") in t.text for t in root.iter("title") if t.text)


def test_bars_that_are_all_zero_have_no_width():
    root = parsed(charts.bars("title", [charts.Bar("a", 0.0, "0")]))
    assert [bar.get("width") for bar in of_class(root, "bar")] == ["0"]
