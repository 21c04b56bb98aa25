"""Writing an export into a folder without touching what is not ours."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tuner.dispatch.evidence import Compared
from tuner.dispatch.table import Entry, HeldOut, Table
from tuner.export.dispatch_sources import Measured
from tuner.model.errors import InputError
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.trial import Variant
from tuner.model.version import TUNER_VERSION
from tuner.session.records import Manifest

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
        "tune": TUNER_VERSION,
        "choice": {"within": table.choice.within, "max_variants": table.choice.most},
        "variants": [_baseline(spec), *_variants(spec, table)],
        "devices": {
            measured.device: {
                "architecture": measured.architecture,
                "measured": measured.date,
                "recorded": manifest.config.device.startswith("recorded"),
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
            "space": manifest.space_sha,
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
        **_measured_json(entry.compared, best.baseline_us if best else None),
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
        **_measured_json(one.compared, one.best.baseline_us if one.best else None),
        "best_us": one.best.time_us if one.best else None,
    }


def _measured_json(compared: Compared | None, baseline_us: float | None) -> dict[str, Any]:
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


TABLE = "dispatch.json"
_SUFFIX = ".new"


def write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Write files by their names in a folder, and remove those of an earlier export.

    Only what an earlier export wrote, and nobody has changed since, is replaced or removed; other
    files stay as they are. Raises `InputError` where one of them is in the way, and where
    something cannot be written: then all that was there is still there.
    """
    try:
        before = _earlier(folder)
        _require_ours(folder, files, before)
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            _unfinished(path).write_text(text, encoding="utf-8")
        # The table last: with it the folder is ours.
        for name in sorted(files, key=lambda name: name == TABLE):
            _unfinished(folder / name).replace(folder / name)
        for name, digest in before.items():
            if name not in files and _is_ours(folder / name, digest):
                (folder / name).unlink()
    except OSError as error:
        raise InputError(
            f"the export cannot be written: {error.strerror or error}",
            path=folder,
            remedy="choose another folder with --to",
        ) from error
    finally:
        for name in files:
            _remove_quietly(_unfinished(folder / name))


def _unfinished(path: Path) -> Path:
    return path.with_name(path.name + _SUFFIX)


def _remove_quietly(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def _earlier(folder: Path) -> Mapping[str, str]:
    """Read which files an earlier export wrote here, with their hashes."""
    path = folder / TABLE
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return {}
    files = content.get("files")
    if not isinstance(files, dict):
        return {}
    names = {str(n): str(h) for n, h in files.items() if not Path(str(n)).is_absolute()}
    return {name: digest for name, digest in names.items() if ".." not in Path(name).parts}


def _require_ours(folder: Path, files: Mapping[str, str], before: Mapping[str, str]) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError("is not a folder", path=folder, remedy="name a folder with --to")
    foreign = [
        name
        for name in files
        if (folder / name).exists() or (folder / name).is_symlink()
        if not _is_ours(folder / name, before.get(name, ""))
        if not (name == TABLE and before)
    ]
    if foreign:
        raise InputError(
            f"{', '.join(foreign)}: not written by tune, or changed since",
            path=folder,
            remedy="nothing was written; move it away, or choose another folder with --to",
        )


def _is_ours(path: Path, digest: str) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    try:
        return sha(path.read_text(encoding="utf-8")) == digest
    except UnicodeDecodeError:
        return False
