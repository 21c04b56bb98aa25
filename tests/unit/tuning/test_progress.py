"""What a run says of its own time: each phase with its seconds and the processes started in it."""

from __future__ import annotations

from types import SimpleNamespace

from tests.support.simulated_device import SimulatedDevice
from tuner.app.run import tune
from tuner.model.config import Config
from tuner.model.trial import INITIAL, Status, Trial
from tuner.process.tally import note_begin, note_end, note_start, spent_on
from tuner.session.events import TimeSpent
from tuner.tuning.progress import REFERENCE, Moment, ProgressTracker


class Restarting(SimulatedDevice):
    """A device that needs another process for what is fully verified, and for one trial."""

    def run(self, program, *, full_verification=False, **options):
        if full_verification or len(self.ran) == 8:
            note_start("tune-worker")
        with spent_on("timing"):
            return super().run(program, full_verification=full_verification, **options)


def test_processes_and_seconds_are_counted_in_their_phase(
    make_plan, make_session, compiler, listener
):
    plan, began = make_plan(), Moment()
    note_start("tune-verifier")
    with make_session(plan, "session") as session:
        device = Restarting(lambda program: 10.0 + program.launches[0].threads / 64)
        tune(
            plan,
            session=session,
            device=device,
            compiler=compiler,
            listener=listener,
            began=began,
        )
        (spent,) = session.events(TimeSpent)
    assert spent.starts is not None
    assert spent.starts["opening"]["tune-verifier"] == 1
    assert spent.starts["baseline"]["tune-worker"] == 3
    assert spent.starts["search"]["tune-worker"] == 1
    assert set(spent.starts) <= set(spent.phases_s)
    assert {"baseline", "search", "finals"} <= set(spent.inside_s)
    assert set(spent.inside_s["baseline"]) == {"compiling", "timing"}
    assert "finalists/timing" in spent.inside_s["finals"]
    for phase, inside in spent.inside_s.items():
        assert sum(inside.values()) <= 2 * spent.phases_s[phase] + 0.01, "of two threads"


def test_what_earlier_runs_took_of_the_time_is_not_left(make_plan, make_session) -> None:
    plan, told = make_plan(time_s=100.0), []
    with make_session(plan) as session:
        session.add_time(95.0)
        listener = SimpleNamespace(update=told.append)
        tracker = ProgressTracker(plan, session, "a GPU", listener)
        workload = plan.tuned[0]
        tracker.expect({workload: 10**9}, searches_left=1)
        config = Config.of({"block": 64, "items": 1})
        tracker.count(Trial(INITIAL, workload, config, Status.COMPILE), measured=True)
    assert 4.0 < told[-1].remaining_s < 5.0


def test_a_slow_reference_is_named_once_with_what_would_be_faster(make_plan, make_session) -> None:
    plan, told = make_plan(), []
    reference = plan.spec.reference
    reference.write_text(f"# numpy.vectorize(\n{reference.read_text()}# np.add.at(x)\n")
    with make_session(plan) as session:
        tracker = ProgressTracker(plan, session, "a GPU", SimpleNamespace(update=told.append))
        first = plan.tuned[0]
        for seconds in (2.0, 12.2, 13.0):
            tracker.announce("baseline", first)
            note_begin(1, REFERENCE)
            note_end(1, seconds)
        tracker.announce("search", plan.tuned[1])
        reference.write_text("def reference(xp, inputs, axes):\n    xp.add.at(out, at, 1)\n")
        note_begin(1, REFERENCE)
        note_end(1, 5.0)
        tracker.announce("finals")
    faster = "np.bincount instead of np.add.at would be faster"
    assert [one.note for one in told if one.note] == [
        f"the reference takes 12 s on {first}",
        f"the reference takes 5 s on {plan.tuned[1]}; {faster}",
    ]
