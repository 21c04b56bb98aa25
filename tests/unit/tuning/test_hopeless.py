"""Values with which nothing works are tried no more, and a report says so."""

from __future__ import annotations

from itertools import product

import pytest

from tests.support.simulated_device import SimulatedDevice
from tuner.app.run import tune
from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, LEFT_OUT, Status, Trial
from tuner.report.data import from_session
from tuner.report.sections.search import never_worked_lines
from tuner.tuning.hopeless import ENOUGH_FAILED, Hopeless

SIZES = [64, 96, 128, 160, 192, 224, 256, 288, 320, 352]


def noted(*broken: dict[str, int], tries_all: bool = False) -> Hopeless:
    """Note a trial of every width and size; those fail that have all of one of `broken`."""
    hopeless = Hopeless(tries_all=tries_all)
    for width, size in product((1, 2, 4, 8), SIZES):
        config = Config.of({"width": width, "size": size})
        fails = any(one.items() <= dict(config).items() for one in broken)
        status = Status.INCORRECT if fails else Status.CORRECT
        hopeless.note(Trial(INITIAL, Workload.of({"T": 8}), config, status, "y[3] is 0"))
    return hopeless


def test_a_value_with_which_all_failed_is_not_worth_trying() -> None:
    hopeless = noted({"width": 8}, {"width": 1})
    for width in (1, 8):
        why = hopeless.why_not(Config.of({"width": width, "size": 512}))
        assert why == (
            f"left out: 10 trials with width {width} failed alike, and none worked: y[3] is 0"
        )
    assert not hopeless.why_not(Config.of({"width": 2, "size": 512}))


def test_what_failed_beside_another_such_value_is_not_held_against_it() -> None:
    hopeless = noted({"width": 8}, *({"size": size} for size in SIZES[:4]))
    assert not hopeless.why_not(Config.of({"width": 8, "size": 512})), "seen with 6 sizes that work"
    assert not hopeless.why_not(Config.of({"width": 2, "size": 64})), "seen with 3 widths"


def test_a_value_that_worked_once_is_tried_on() -> None:
    broken = [{"width": 8, "size": size} for size in SIZES[1:]]
    assert not noted(*broken).why_not(Config.of({"width": 8, "size": 512}))


def test_all_is_tried_where_all_is_asked_for() -> None:
    hopeless = noted({"width": 8}, tries_all=True)
    assert not hopeless.why_not(Config.of({"width": 8, "size": 512}))


@pytest.mark.parametrize("searcher", ["exhaustive", "random", "auto"])
def test_a_search_leaves_out_what_never_works_resumes_so_and_says_it(
    project, make_plan, make_session, compiler, listener, searcher
):
    space = project / "scale.yaml"
    plain = "  block: [32, 64, 128, 256, 512]\n  items: [1, 2, 4, 8]\n"
    text = space.read_text()
    assert plain in text
    blocks = ", ".join(str(32 * number) for number in range(1, 33))
    wider = f"  block: [{blocks}]\n  items: [1, 2, 3, 4]\n"
    text = text.replace(plain, wider).replace("block * items <= 2048", "block * items <= 8192")
    space.write_text(text)

    def answer(program):
        broken = program.config and program.config["items"] in (2, 3)
        return Status.INCORRECT if broken else 10.0 + program.launches[0].threads / 1e3

    class Interrupting(SimulatedDevice):
        def run(self, program, **options):
            if len(self.ran) == 30:
                raise KeyboardInterrupt
            return super().run(program, **options)

    def searched(name: str, device: SimulatedDevice):
        with make_session(plan, name) as session:
            tune(plan, session=session, device=device, compiler=compiler, listener=listener)
            lines = never_worked_lines(from_session(session))
            return session.trials(INITIAL), lines

    plan = make_plan(searcher=searcher, seed=5, trials=None if searcher == "exhaustive" else 60)
    trials, lines = searched("whole", SimulatedDevice(answer))
    left = [trial for trial in trials if trial.reason.startswith(LEFT_OUT)]
    tried = [trial for trial in trials if trial.status is Status.INCORRECT]
    # two values, and what was under way meanwhile; a guided search sees for itself
    assert searcher == "auto" or 2 * ENOUGH_FAILED <= len(tried) < 40
    assert {trial.config["items"] for trial in left} <= {2, 3}
    (line,) = lines
    assert line.startswith("nothing worked with items ")
    assert line.endswith("s: wrong result: simulated: incorrect") or left
    assert bool(left) == (f"so {len(left)} configs were left out" in line)
    if searcher == "exhaustive":
        assert sum(trial.status is Status.CORRECT for trial in trials) == 2 * 32 * 2
    elif searcher == "random":
        assert len(trials) - len(left) == 120, "what is left out takes nothing from the budget"
    with pytest.raises(KeyboardInterrupt):
        searched("broken", Interrupting(answer))
    again, _ = searched("broken", SimulatedDevice(answer))
    assert [(t.config, t.status) for t in again] == [(t.config, t.status) for t in trials]
