"""A device that answers by a function instead of hardware."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tuner.device.base import ComparisonRounds, Device, DeviceInfo, Outcome, Program
from tuner.model.errors import DeviceError
from tuner.model.trial import Correctness, EnergyWindow, Measurement, Status

H200_LIKE = DeviceInfo(
    name="simulated H200",
    architecture="sm_90a",
    compute_capability=(9, 0),
    multiprocessors=132,
    l2_bytes=60 << 20,
    streaming_gbps=4200.0,
    recorded=False,
)


class SimulatedDevice(Device):
    """Give every program the time (us) or failing status that `answer` returns; list what `ran`."""

    capabilities = frozenset({"verify", "rank", "machine_code"})

    def __init__(
        self, answer: Callable[[Program], float | Status], info: DeviceInfo = H200_LIKE
    ) -> None:
        self.info = info
        self.ran: list[Program] = []
        self.closed = False
        self._answer = answer

    def run(
        self,
        program: Program,
        *,
        incumbent_us: float | None = None,
        full_verification: bool = False,
    ) -> Outcome:
        self.ran.append(program)
        answer = self._answer(program)
        if isinstance(answer, Status):
            return Outcome(answer, f"simulated: {answer}")
        measurement = Measurement((answer,) * 5, calls_per_replay=20, buffer_sets=4)
        return Outcome(Status.CORRECT, "", measurement, Correctness(True, ("normal",)))

    def verify(self, program: Program) -> Outcome:
        return replace(self.run(program), measurement=None)

    def compare(self, programs: Sequence[Program], *, rounds: int) -> ComparisonRounds:
        row = tuple(self._time_us(program) for program in programs)
        return ComparisonRounds((row,) * rounds, paired=True, isolated_us=(None,) * len(row))

    def rank(self, programs: Sequence[Program], *, rounds: int) -> Sequence[Sequence[float]]:
        return self.compare(programs, rounds=rounds).times_us

    def close(self) -> None:
        self.closed = True

    def _time_us(self, program: Program) -> float:
        answer = self._answer(program)
        if isinstance(answer, Status):
            raise DeviceError(f"a verified program failed when timed again: {answer}")
        return answer


class MeteredDevice(SimulatedDevice):
    """Draw the power (W) that `power` returns; list the programs `metered`, None for idle."""

    capabilities = SimulatedDevice.capabilities | {"energy"}

    def __init__(
        self,
        answer: Callable[[Program], float | Status],
        power: Callable[[Program], float | Status],
        *,
        idle_w: float = 100.0,
    ) -> None:
        super().__init__(answer)
        self.metered: list[Program | None] = []
        self._power, self._idle_w = power, idle_w

    def require_energy(self) -> None:
        """Nothing stands against it."""

    def idle_energy(self, *, seconds: float) -> EnergyWindow:
        self.metered.append(None)
        return EnergyWindow(self._idle_w * seconds, seconds)

    def energy(self, program: Program, *, seconds: float) -> EnergyWindow | Outcome:
        self.metered.append(program)
        power = self._power(program)
        if isinstance(power, Status):
            return Outcome(power, f"simulated: {power}")
        return EnergyWindow(power * seconds, seconds, self._time_us(program), buffer_sets=4)
