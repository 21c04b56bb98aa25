"""What a benchmark ran on, and where its results go."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "cpu"
PACKAGES = ("kernel-tune", "kernel_tuner", "numpy", "optuna", "python-constraint2", "scikit-learn")


def environment() -> dict[str, object]:
    """Describe the interpreter, packages and processor."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def cpu_model() -> str:
    """Name the processor as the operating system does."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def write_result(name: str | Path, content: dict[str, object]) -> None:
    """Write JSON to the results of this folder, or to the path given."""
    path = name if isinstance(name, Path) else RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"wrote {path.name}")
