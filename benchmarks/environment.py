"""What a benchmark ran on, with which commit of the code, and where its results go."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results/cpu"
PACKAGES = ("kernel-tune", "kernel_tuner", "numpy", "optuna", "python-constraint2", "scikit-learn")
# What benchmarks write themselves leaves the code what it was.
OUTPUTS = ("benchmarks/results", "kernels/*/recordings", "docs/results.md")
CLEAN = re.compile(r"(?:.+-g)?[0-9a-f]{7,40}")


def environment() -> dict[str, object]:
    """Describe the code, the interpreter, packages and the processor."""
    return {
        **provenance(),
        "python": platform.python_version(),
        "packages": versions(PACKAGES),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
    }


def provenance() -> dict[str, str]:
    """Name the code's commit, `-dirty` where a file was changed, and the day."""
    return {"commit": commit(), "date": datetime.now(UTC).date().isoformat()}


def commit() -> str:
    """Name the commit: what `TUNE_COMMIT` says, or else git; "" where neither knows."""
    if stated := os.environ.get("TUNE_COMMIT"):
        return stated
    changed = [f":(exclude,glob){path}{'/**' * (not path.endswith('.md'))}" for path in OUTPUTS]
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        dirty = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *changed)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{head}-dirty" if dirty else head


# Named by results, and in no history: nobody can check out what they measured.
LOST: frozenset[str] = frozenset()


def missed(*, unless: bool) -> str:
    """Mark a figure that was asked for and not reached."""
    return "" if unless else " **missed**"


def is_lost(content: Mapping[str, Any]) -> bool:
    """Tell whether nobody can check out the code that made a result."""
    return content["environment"].get("commit") in LOST


def is_clean(name: object) -> bool:
    """Tell whether this is the name of a commit, and not of a changed tree."""
    return isinstance(name, str) and CLEAN.fullmatch(name) is not None


def require_clean() -> str:
    """Return the commit; exit where results would not name a clean one."""
    known = commit()
    if not is_clean(known):
        raise SystemExit(
            f"the code's commit is {known or 'unknown'}: commit what was changed, or, in a copy "
            "without .git, set TUNE_COMMIT to the commit that was copied"
        )
    return known


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Name the version of each package that is installed."""
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def cpu_model() -> str:
    """Name the processor as the operating system does."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def write_result(name: str | Path, content: dict[str, Any]) -> None:
    """Write JSON to the results of this folder, or to the path given.

    It says of which commit it is, and has a digest, by which an edit by hand is seen.
    """
    path = name if isinstance(name, Path) else RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    stated = {**content, "environment": {**provenance(), **content.get("environment", {})}}
    stated["digest"] = digest_of(stated)
    path.write_text(json.dumps(stated, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path.name}")


def digest_of(content: Mapping[str, Any]) -> str:
    """Hash all that a result says but its own digest."""
    said = {name: value for name, value in content.items() if name != "digest"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def _git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
