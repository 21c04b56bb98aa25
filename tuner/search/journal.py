"""Optuna's journal of a session: a file that optuna-dashboard opens, with a study per workload."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.model.config import Config
from tuner.model.errors import SessionError
from tuner.model.trial import Trial

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.storages.journal import JournalStorage

# Seconds after which the lock of a killed writer is taken over; a write holds it for about 1 ms.
LOCK_GRACE_S = 3
# Optuna reads a journal whole; a trial is about 1,000 bytes.
MOST_BYTES = 64 << 20
# For each it looks through all before; a run has one a workload and template.
MOST_STUDIES = 10_000


@dataclass(eq=False)
class JournalFile:
    """A file that the studies of a search are in: whoever writes reads what the others wrote, once.

    Optuna is imported when the first study is opened.
    """

    path: Path

    @cached_property
    def storage(self) -> JournalStorage:
        from optuna.storages.journal import (
            JournalFileBackend,
            JournalFileOpenLock,
            JournalStorage,
        )

        if self.path.exists() and self.path.stat().st_size > MOST_BYTES:
            raise _unreadable(self.path, f"over {MOST_BYTES:,} bytes")
        lock = JournalFileOpenLock(str(self.path), grace_period=LOCK_GRACE_S)
        # Take back what a full disk or a kill cut short: Optuna would go on in the same line.
        lock.acquire()
        try:
            with suppress(FileNotFoundError), self.path.open("r+b") as file:
                content = file.read()
                if content.count(b'"study_name"') > MOST_STUDIES:
                    raise _unreadable(self.path, f"over {MOST_STUDIES:,} studies")
                end = content.rfind(b"\n") + 1
                if content[end : end + 1] == b"{":  # else it is no journal
                    file.truncate(end)
        finally:
            lock.release()
        return JournalStorage(JournalFileBackend(str(self.path), lock))


class JournalStudy:
    """Append told trials to one study of a journal, each config once however often told."""

    def __init__(
        self, journal: JournalFile, study_name: str, distributions: Mapping[str, BaseDistribution]
    ) -> None:
        import optuna

        self._path, self._distributions = journal.path, dict(distributions)
        try:
            self._study = optuna.create_study(
                storage=journal.storage, study_name=study_name, load_if_exists=True
            )
            tried = self._study.get_trials(deepcopy=False)
            self._known = {Config.of(trial.params).key for trial in tried}
            if self._study.directions != [optuna.study.StudyDirection.MINIMIZE]:
                raise ValueError(f"the study {study_name} minimizes no time")
        except SessionError:
            raise
        except OSError as error:
            raise _unwritable(journal.path, error) from error
        except Exception as error:  # Optuna takes for granted what it wrote itself
            raise _unreadable(journal.path, f"{type(error).__name__}: {error}") from error

    def add(self, trial: Trial) -> None:
        from optuna.trial import TrialState, create_trial

        if trial.config.key in self._known:
            return
        self._known.add(trial.config.key)
        attributes: dict[str, Any] = {"status": str(trial.status), "reason": trial.reason}
        if trial.resources is not None:
            attributes["registers"] = trial.resources.registers
        if trial.occupancy is not None:
            attributes["occupancy"] = trial.occupancy.share
        frozen = create_trial(
            state=TrialState.FAIL if trial.time_us is None else TrialState.COMPLETE,
            value=trial.time_us,
            params=dict(trial.config.items_),
            distributions=self._distributions,
            user_attrs=attributes,
        )
        try:
            self._study.add_trial(frozen)
        except OSError as error:
            raise _unwritable(self._path, error) from error


def _unreadable(path: Path, reason: str) -> SessionError:
    return SessionError(
        f"not an Optuna journal: {reason}",
        path=path,
        remedy="remove it: resuming the session writes it again",
    )


def _unwritable(path: Path, error: OSError) -> SessionError:
    return SessionError(
        f"cannot write Optuna's journal: {error.strerror or error}",
        path=path,
        remedy=f"once the cause is gone, continue with `--resume {path.parent}`",
    )
