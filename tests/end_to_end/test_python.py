"""The Python interface: what its page shows works, and what goes wrong is an exception."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tuner
from tuner.model.errors import InputError, KernelError, SessionError

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SILU = "kernels/sglang/silu_and_mul.cu"
WORKLOAD = "T=1,D=14336"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like the checkout and takes the sessions."""
    for name in ("kernels", "search_spaces", "templates"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUNE_STORE", "none")
    return tmp_path


def test_every_example_of_the_page_runs(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    for example in EXAMPLES:
        exec(example, names)  # noqa: S102
    printed = capsys.readouterr().out
    assert "x over 2 workloads" in printed
    assert (checkout / "exported" / "silu_and_mul.h").exists()
    assert (checkout / "silu" / "report.html").exists()


def test_what_is_wrong_is_an_exception_and_leaves_no_session(checkout: Path) -> None:
    with pytest.raises(KernelError, match="no axis is named 'X'"):
        tuner.tune(SILU, device="recorded", workloads=["X=1"], session="wrong")
    with pytest.raises(InputError, match="'nonsense' is no searcher"):
        tuner.tune(SILU, device="recorded", searcher="nonsense", session="wrong")
    assert not (checkout / "wrong").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trials": 10**30}, "`trials` is 10+: it is a whole number from 1 to "),
        ({"trials": 0}, "`trials` is 0"),
        ({"trials": "5"}, "`trials` is '5'"),
        ({"rounds": 2**63}, "`rounds` is 9223372036854775808: it is a whole number from 0"),
        ({"max_variants": -1}, "`max_variants` is -1"),
        ({"seed": 2**32}, "`seed` is 4294967296: it is a whole number from 0 to 4294967295"),
        ({"time_s": float("nan")}, "`time_s` is nan: it is a number of seconds"),
        ({"max_cost": -1.0}, "`max_cost` is -1.0: it is an amount of money"),
        ({"enough": 2}, "`enough` is 2: it is a share of the best time"),
        ({"enough": float("nan")}, "`enough` is nan: it is a share of the best time"),
        ({"variants_within": 1.5}, "`variants_within` is 1.5: it is a share"),
        ({"jobs": 0}, "`jobs` is 0: it is a whole number from 1"),
        ({"seed": None}, "`seed` is None: it is a whole number from 0 to"),
        ({"objective": "speed"}, "`objective` is 'speed': it is time or energy or edp"),
        ({"trails": 5}, "there is no setting `trails`\n  did you mean `trials`\\?"),
    ],
)
def test_a_number_that_no_run_can_have_is_told_before_there_is_a_session(
    checkout: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        tuner.tune(SILU, device="recorded", session="wrong", **settings)
    assert not (checkout / "wrong").exists()


def test_one_workload_needs_no_list(checkout: Path) -> None:
    done = tuner.tune(SILU, device="recorded", trials=2, workloads=WORKLOAD, session="one")
    assert [str(one.workload) for one in done.results] == ["T=1 D=14336"]


def test_a_session_is_gone_on_with_only_as_it_began(checkout: Path) -> None:
    done = tuner.tune(SILU, device="recorded", trials=4, workloads=[WORKLOAD], session="mine")
    again = tuner.tune(session="mine", trials=4)
    assert again.results == done.results
    assert list(again.winners()["T"]) == [1]
    assert "Baseline us" in again._repr_html_()
    with pytest.raises(SessionError, match="--seed: not what the session was started with"):
        tuner.tune(session="mine", seed=5)
    with pytest.raises(InputError, match=r"nothing was tuned for T=2,D=14336\n.*T=1,D=14336"):
        again.best({"T": 2, "D": 14336})


def test_a_draft_is_of_the_kernel_and_the_instantiation_that_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    body = "(T* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = NONE; }\n"
    Path("csrc").mkdir()
    Path("csrc/none.h").write_text("#define NONE 0\n")
    kernels = (f"template <typename T>\n__global__ void {name}{body}" for name in ("one", "two"))
    Path("k.cu").write_text('#include "none.h"\n' + "".join(kernels))
    with pytest.raises(InputError, match="left in the draft for two"):
        tuner.tune("k.cu", kernel="two", instantiate="two<float>", include="csrc")
    assert "- kernel: two<float>" in Path("search_spaces/k.yaml").read_text()


class Shown:
    """What a notebook's kernel was asked to display, and to draw again."""

    def __init__(self) -> None:
        self.drawn: list[Any] = []

    def display(self, value: Any, *, display_id: bool) -> Shown:
        assert display_id
        self.drawn.append(value)
        return self

    def update(self, value: Any) -> None:
        self.drawn.append(value)


def test_a_notebook_shows_bars_then_the_verdict_the_table_and_plots(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Shown()
    kernel = SimpleNamespace(kernel=object())
    notebook = SimpleNamespace(get_ipython=lambda: kernel)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=shown.display))
    done = tuner.tune(SILU, device="recorded", trials=4, workloads=[WORKLOAD], session="mine")
    assert not capsys.readouterr().out
    first, last = shown.drawn[0], shown.drawn[-1]
    assert repr(first) == "silu_and_mul: measuring the baseline, 0 of 0 trials"
    assert repr(last) == "silu_and_mul: done, 4 of 4 trials"
    assert '<progress max="4" value="4">' in last._repr_html_()

    page = done._repr_html_()
    assert "RECORDED on NVIDIA H200" in page
    assert f"{done.results[0].speedup:.2f}x" in page
    assert str(done.results[0].tuned_us) not in page  # three or four digits are enough
    assert repr(done).startswith("<silu_and_mul: RECORDED on NVIDIA H200")
    plot = done.plot()
    assert "<svg" in plot.html
    assert "Where is it faster?" in plot._repr_html_()
    assert {"time", "search", "occupancy"} == {
        name for name in ("time", "search", "occupancy") if done.plot(name).html
    }
    with pytest.raises(InputError, match=r"no plot 'nonsense'\n.*plots: time, .*speedup"):
        done.plot("nonsense")


def test_nothing_is_shown_without_a_notebook_or_where_somebody_listens(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = SimpleNamespace(get_ipython=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "IPython", terminal)
    seen: list[object] = []
    question = {"device": "recorded", "trials": 2, "workloads": [WORKLOAD]}
    tuner.tune(SILU, session="terminal", **question)
    notebook = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=None))
    tuner.tune(SILU, session="heard", progress=seen.append, **question)
    assert seen
