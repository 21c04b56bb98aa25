"""Kernel Tuner's `cache`: what was measured, in a JSON file that a later call goes on from."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.model.config import Config
from tuner.model.errors import InputError
from tuner.process.files import atomic_write, parse_json, read_text

# Between two writes of the whole file, in seconds.
INTERVAL_S = 2.0


@dataclass
class CacheFile:
    """Hold rows by config; `header` says what they are of, and has to be that of the file.

    Kernel Tuner's own files are read as well: of theirs nothing is known but kernel, device and
    parameters.
    """

    path: Path
    header: Mapping[str, Any]
    _rows: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)
    _written_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if not self.path.exists():
            return
        try:
            text = read_text(self.path)
            # Kernel Tuner leaves an open file without its end.
            kept = parse_json(text if text.rstrip().endswith("}}") else text.rstrip(", \n") + "}}")
            rows = dict(kept["cache"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"is no cache: {error}", path=self.path) from error
        for name, wanted in self.header.items():
            if name in kept and kept[name] != wanted:
                raise InputError(
                    f"the cache is of another {name}: {kept[name]!r}, and this is {wanted!r}",
                    path=self.path,
                    remedy="name another file, or delete this one",
                )
        self._rows.update(rows)

    def find(self, config: Config) -> dict[str, Any] | None:
        """Return the row of a config that was timed."""
        row = self._rows.get(self._key(config), {})
        return row if isinstance(row.get("times"), list) else None

    def keep(self, config: Config, row: Mapping[str, Any]) -> None:
        self._rows[self._key(config)] = dict(row)
        if time.monotonic() - self._written_s > INTERVAL_S:
            self.write()

    def write(self) -> None:
        atomic_write(self.path, json.dumps({**self.header, "cache": self._rows}, default=str))
        self._written_s = time.monotonic()

    def _key(self, config: Config) -> str:
        return ",".join(map(str, config.values()))


def cache_path(name: str | Path) -> Path:
    """Add the end that Kernel Tuner adds."""
    return Path(f"{name}" if str(name).endswith(".json") else f"{name}.json")
