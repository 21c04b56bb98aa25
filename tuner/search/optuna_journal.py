"""The file that optuna-dashboard opens: every told trial, one study per workload."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalStorage
from optuna.trial import TrialState

from tuner.errors import SessionError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    from tuner.trial import Trial

# Seconds after which the lock of a killed writer is taken over; a write holds it for about 1 ms.
LOCK_GRACE_S = 3


class OptunaJournal:
    """Append told trials to one study of a journal file, each config once however often told."""

    def __init__(
        self, path: Path, study_name: str, distributions: Mapping[str, BaseDistribution]
    ) -> None:
        self._path, self._distributions = path, dict(distributions)
        lock = JournalFileOpenLock(str(path), grace_period=LOCK_GRACE_S)
        try:
            _end_last_line(path, lock)
            storage = JournalStorage(JournalFileBackend(str(path), lock))
            self._study = optuna.create_study(
                storage=storage, study_name=study_name, load_if_exists=True
            )
        except (ValueError, KeyError) as error:
            raise SessionError(
                f"not an Optuna journal: {error}",
                path=path,
                remedy="remove it: resuming the session writes it again",
            ) from error
        except OSError as error:
            raise _unwritable(path, error) from error
        self._known = {_key(trial.params) for trial in self._study.get_trials(deepcopy=False)}

    def add(self, trial: Trial) -> None:
        """Append one trial, unless an earlier run of the same session did."""
        key = _key(trial.config)
        if key in self._known:
            return
        self._known.add(key)
        attributes: dict[str, Any] = {"status": str(trial.status), "reason": trial.reason}
        if trial.resources is not None:
            attributes["registers"] = trial.resources.registers
        if trial.occupancy is not None:
            attributes["occupancy"] = trial.occupancy.share
        told = optuna.trial.create_trial(
            state=TrialState.FAIL if trial.time_us is None else TrialState.COMPLETE,
            value=trial.time_us,
            params=dict(trial.config),
            distributions=self._distributions,
            user_attrs=attributes,
        )
        try:
            self._study.add_trial(told)
        except OSError as error:
            raise _unwritable(self._path, error) from error


def _end_last_line(path: Path, lock: JournalFileOpenLock) -> None:
    """Take back what a full disk or a kill cut short: Optuna would go on in the same line."""
    lock.acquire()
    try:
        with suppress(FileNotFoundError), path.open("r+b") as file:
            content = file.read()
            end = content.rfind(b"\n") + 1
            if content[end : end + 1] == b"{":  # else it is no journal
                file.truncate(end)
    finally:
        lock.release()


def _unwritable(path: Path, error: OSError) -> SessionError:
    return SessionError(
        f"cannot write Optuna's journal: {error.strerror or error}",
        path=path,
        remedy=f"once the cause is gone, continue with `--resume {path.parent}`",
    )


def _key(params: Mapping[str, Any]) -> str:
    return json.dumps(dict(params), sort_keys=True)
