"""The dispatch table as JSON, keyed by device and shape, and as a page that says how to build."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from tuner import __version__
from tuner.dispatch.evidence import Compared
from tuner.dispatch.table import Entry, HeldOut, Table
from tuner.export.dispatch_sources import Measured
from tuner.kernel import KernelSpec, Workload
from tuner.session_records import Manifest
from tuner.trial import Variant

FORMAT = "tune dispatch"
VERSION = 1

# Options of NVRTC that nvcc has no word for.
_ONLY_NVRTC = ("--builtin-", "--device-int128", "--device-float128", "-default-device")


def document(
    spec: KernelSpec,
    manifest: Manifest,
    measured: Measured,
    table: Table,
    wanted: Iterable[tuple[Workload, Variant]],
    files: Mapping[str, str],
) -> dict[str, Any]:
    """Make the JSON object; `files` are the texts of the other files by their names.

    Times are in microseconds. Shapes are written as `--workload` takes them.
    """
    return {
        "format": FORMAT,
        "version": VERSION,
        "kernel": spec.name,
        "operators": dict(measured.operators),
        "axes": list(spec.axes),
        "tune": __version__,
        "choice": {"within": table.choice.within, "max_variants": table.choice.most},
        "variants": [_baseline(spec), *_variants(spec, table)],
        "devices": {
            measured.device: {
                "architecture": measured.architecture,
                "measured": measured.date,
                "recorded": manifest.device.startswith("recorded"),
                "shapes": {one.workload.key: _entry(one, table) for one in table.entries},
                "held_out": {one.workload.key: _held_out(one, table) for one in table.held_out},
                "wanted": [
                    {"shape": workload.key, "candidate": one.candidate, "config": dict(one.config)}
                    for workload, one in wanted
                ],
            }
        },
        "made_from": {
            "source": manifest.source_sha,
            "space": manifest.space_text_sha,
            "template": manifest.template_sha,
        },
        "files": {name: sha(text) for name, text in files.items()},
    }


def sha(text: str) -> str:
    """Hash a file's text with SHA-256, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def variant_file(kernel: str, number: int) -> str:
    """Name a variant's source in the folder."""
    return f"variants/{kernel}_v{number}.cu"


def nvcc_options(spec: KernelSpec) -> list[str]:
    """List the compiler options and include folders that the kernel was tuned with."""
    kept = [one for one in spec.compile_options if not one.startswith(_ONLY_NVRTC)]
    return [*kept, *(f"-I{folder}" for folder in spec.include_dirs)]


def _baseline(spec: KernelSpec) -> dict[str, Any]:
    return {"variant": 0, "file": variant_file(spec.name, 0), "candidate": None, "config": None}


def _variants(spec: KernelSpec, table: Table) -> Iterable[dict[str, Any]]:
    for number, kernel in enumerate(table.kernels, start=1):
        yield {
            "variant": number,
            "file": variant_file(spec.name, number),
            "candidate": kernel.variant.candidate,
            "config": dict(kernel.variant.config),
        }


def _entry(entry: Entry, table: Table) -> dict[str, Any]:
    best = entry.best
    return {
        "variant": table.number(entry.kernel),
        **_measured(entry.compared, best.baseline_us if best else None),
        "best_us": best.time_us if best else None,
        "slowdown": entry.slowdown,
        "reason": entry.reason,
    }


def _held_out(one: HeldOut, table: Table) -> dict[str, Any]:
    return {
        "variant": 0 if one.refuted else table.number(one.kernel),
        "nearest": one.nearest.key if one.nearest else None,
        "rule": table.number(one.kernel),
        "verdict": one.verdict,
        **_measured(one.compared, one.best.baseline_us if one.best else None),
        "best_us": one.best.time_us if one.best else None,
    }


def _measured(compared: Compared | None, baseline_us: float | None) -> dict[str, Any]:
    if compared is None:
        return {
            "time_us": baseline_us,
            "baseline_us": baseline_us,
            "speedup": None,
            "interval": None,
            "paired": None,
        }
    return {
        "time_us": compared.time_us,
        "baseline_us": compared.baseline_us,
        "speedup": compared.speedup,
        "interval": list(compared.interval),
        "paired": compared.paired,
    }
