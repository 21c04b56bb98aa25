"""What a run says of its own time: each phase with its seconds and the processes started in it."""

from __future__ import annotations

from tuner.app.run import tune
from tuner.device.simulated import SimulatedDevice
from tuner.process.starts import note_start
from tuner.process.tally import spent_on
from tuner.session.events import TimeSpent
from tuner.tuning.progress import Moment


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
