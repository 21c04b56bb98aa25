"""A session's dispatch as a folder: header, variants, table, and how to build it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tuner.compiler.includes import header_digest
from tuner.dispatch.evidence import Compared, productions
from tuner.dispatch.table import Exported, SetSelection, wanted_for
from tuner.extensions.export.folder import with_table, write_folder
from tuner.extensions.export.sources import CppSources, describe_surroundings, template, times_of
from tuner.extensions.export.winners import Winners, cuda_winners_of
from tuner.model import TUNER_VERSION
from tuner.model.kernel import Invariance, KernelSpec

# Options of NVRTC that nvcc has no word for.
_ONLY_NVRTC = ("--builtin-", "--device-int128", "--device-float128", "-default-device")


def export_dispatch(
    directory: Path, to: Path, choice: SetSelection | None, space: Path | None
) -> Exported:
    """Write the dispatch of the session in `directory` to the folder `to`.

    Without a `choice` of the variants it is the one that the session was run with.
    `space` is the session's search space where it is no longer where it was. Raises
    `SessionError` where there is no session, nothing was compared in it, or its files have
    changed, and `InputError` where the folder cannot be written or holds what is not ours.
    """
    winners = cuda_winners_of(directory, choice, space)
    spec, dispatch, measured = winners.spec, winners.dispatch, winners.measured
    sources = CppSources(spec, dispatch, measured)
    units = [variant_file(spec.name, variant.number) for variant in sources.variants]
    files = source_files(sources)
    options = options_of(spec, files.values())
    files["CMakeLists.txt"] = template("CMakeLists.txt.j2").render(
        kernel=spec.name,
        architecture=measured.architecture.removeprefix("sm_"),
        files=units,
        options=[re.sub(r'(["\\$;])', r"\\\1", shlex.quote(option)) for option in options],
    )
    files["README.md"] = template("dispatch_readme.md.j2").render(
        kernel=spec.name,
        version=TUNER_VERSION,
        measured=measured,
        recorded=measured.recorded,
        axes=", ".join(spec.axes),
        table=dispatch.table,
        productions=productions,
        surroundings=times_of(spec, dispatch.table),
        options="".join(f" {shlex.quote(option)}" for option in options),
        scalars=sources.scalars,
        variants=sources.variants,
        operators=", ".join(f"`{n}` is `{v}`" for n, v in measured.operators.items()),
    )
    written = with_table(files, _content_of_table(sources, winners))
    write_folder(to, written)
    return Exported(to, dispatch.table, tuple(written), winners.incomplete)


def source_files(sources: CppSources) -> dict[str, str]:
    """Write the header and the variants, by their names in the folder."""
    kernel = sources.spec.name
    files = {f"{kernel}.h": sources.header()}
    return files | {
        variant_file(kernel, variant.number): sources.variant(variant)
        for variant in sources.variants
    }


def options_of(spec: KernelSpec, texts: Iterable[str]) -> list[str]:
    """List nvcc's options: those of the tuning, and the include folders in use."""
    options = [option for option in spec.compile_options if not option.startswith(_ONLY_NVRTC)]
    sources = list(texts)
    used = (
        path for path in spec.include_dirs if any(header_digest(text, (path,)) for text in sources)
    )
    return options + [f"-I{folder}" for folder in used]


def _content_of_table(sources: CppSources, winners: Winners) -> dict[str, Any]:
    """Make the content of `dispatch.json`: times in us, shapes as `--workload` takes them."""
    dispatch, measured, manifest = winners.dispatch, winners.measured, winners.manifest
    spec, table = sources.spec, dispatch.table
    own = [None, *(kernel.variant for kernel in table.kernels)]
    return {
        "kernel": spec.name,
        "operators": dict(measured.operators),
        "axes": list(spec.axes),
        "scalars": {scalar.name: scalar.value for scalar in sources.scalars},
        **({"constants": list(spec.constants)} if spec.constants else {}),
        "tune": TUNER_VERSION,
        "choice": {"within": table.choice.within, "max_variants": table.choice.most},
        "curve": [{"variants": p.variants, "speedup": p.speedup} for p in dispatch.curve()],
        **({"keep_bits": True} if manifest.config.keep_bits else {}),
        **({"invariant": _rows(spec.invariant)} if table.keeps_rows else {}),
        "variants": [
            {
                "variant": number,
                "file": variant_file(spec.name, number),
                "candidate": variant.candidate if variant else None,
                "config": dict(variant.config) if variant else None,
                "fixed": list(sources.variants[number].fixed),
            }
            for number, variant in enumerate(own)
        ],
        "devices": {
            measured.device: {
                "architecture": measured.architecture,
                "measured": measured.date,
                "recorded": measured.recorded,
                "verified_by": measured.verified_by or None,
                "surroundings": describe_surroundings(spec, table),
                "shapes": {
                    entry.workload.key: {
                        "variant": table.number(entry.kernel),
                        **_times(entry.compared, entry.best),
                        "slowdown": entry.slowdown,
                        "reason": entry.reason,
                    }
                    for entry in table.entries
                },
                "held_out": {
                    held_out.workload.key: {
                        "variant": 0 if held_out.refuted else table.number(held_out.kernel),
                        "nearest": held_out.nearest.key if held_out.nearest else None,
                        "rule": table.number(held_out.kernel),
                        "verdict": held_out.verdict,
                        **_times(held_out.compared, held_out.best),
                    }
                    for held_out in table.held_out
                },
                "wanted": [
                    {"shape": workload.key, "candidate": one.candidate, "config": dict(one.config)}
                    for workload, one in wanted_for(dispatch)
                ],
            }
        },
        "made_from": {
            "source": manifest.source_sha,
            "space": manifest.space_sha,
            "template": manifest.template_sha,
        },
    }


def _rows(rows: Invariance | None) -> dict[str, list[str]]:
    """Say as a search space does whose rows have the same bits at every size."""
    assert rows is not None
    return {rows.axis: [*rows.outputs], **({"by": [*rows.by]} if rows.by else {})}


def _times(compared: Compared | None, best: Compared | None) -> dict[str, Any]:
    """Without a comparison the baseline serves, whose time the best was compared with."""
    baseline_us = best.baseline_us if best else None
    alone_baseline_us = best.alone_baseline_us if best else None
    return {
        "time_us": compared.time_us if compared else baseline_us,
        "baseline_us": compared.baseline_us if compared else baseline_us,
        "speedup": compared.speedup if compared else None,
        "interval": list(compared.interval) if compared else None,
        "paired": compared.paired if compared else None,
        "best_us": best.time_us if best else None,
        "surroundings": best.surroundings if best else None,
        "alone_us": compared.alone_us if compared else alone_baseline_us,
        "alone_baseline_us": alone_baseline_us,
        "production": productions(best),
        "production_us": best.production.time_us if best and best.production else baseline_us,
    }


def variant_file(kernel: str, number: int) -> str:
    """Name a variant's source in the folder; 0 is the baseline."""
    return f"variants/{kernel}_v{number}.cu"
