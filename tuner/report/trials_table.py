"""Every trial of a session as a table, for analysis elsewhere."""

from __future__ import annotations

import pandas as pd

from tuner.model.trial import Trial
from tuner.report.data import ReportData


def trials_frame(data: ReportData) -> pd.DataFrame:
    """Lay the trials out, one a row in the order they ended.

    Axes and parameters are columns of their own, parameters as `config.NAME`; times are in
    microseconds, empty where a trial has none.
    """
    rows = [_row(trial, elapsed_s) for trial, elapsed_s in data.records]
    return pd.DataFrame(rows).convert_dtypes()


def _row(trial: Trial, elapsed_s: float) -> dict[str, object]:
    resources, occupancy = trial.resources, trial.occupancy
    measurement = trial.measurement
    return {
        "elapsed_s": round(elapsed_s, 3),
        "stage": trial.stage,
        "candidate": trial.candidate,
        **trial.workload.values,
        **{f"config.{name}": value for name, value in trial.config.items()},
        "status": trial.status.value,
        "reason": trial.reason,
        "time_us": trial.time_us,
        "samples": None if measurement is None else len(measurement.times_us),
        "stopped_early": None if measurement is None else measurement.stopped_early,
        "registers": None if resources is None else resources.registers,
        "spill_store_bytes": None if resources is None else resources.spill_store_bytes,
        "static_shared_bytes": None if resources is None else resources.static_shared_bytes,
        "occupancy": None if occupancy is None else occupancy.share,
        "limited_by": None if occupancy is None else occupancy.limiter,
    }
