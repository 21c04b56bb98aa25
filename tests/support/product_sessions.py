"""Sessions of an engine's invariant product, with made-up times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dispatch_sample import ENVIRONMENT, comparison, trial
from manifests import manifest
from operator_sessions import SPACES

from tuner.extensions.engines.configs.files import Engine
from tuner.extensions.engines.configs.products import Product
from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Correctness, Variant
from tuner.session.events import BitsKept
from tuner.session.records import file_sha
from tuner.session.session import Session
from tuner.space.callables import load_template
from tuner.space.load import load_definition

SPACE = SPACES / "matmul_persistent.yaml"
QKV, OUT = Product(6144, 4096), Product(4096, 4096)


def config(rows: int, step: int = 64, **changed: int) -> dict[str, Any]:
    own = {"BLOCK_SIZE_M": rows, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": step, "GROUP_SIZE_M": 8}
    return {**own, "num_warps": 4, "num_stages": 3, **changed}


def write_product_session(
    folder: Path,
    times: Mapping[tuple[int, Product], Mapping[int, float]],
    engine: Engine = "vllm",
    *,
    kept: bool = True,
    **environment: str,
) -> Path:
    """Write a session in which configs of so many BLOCK_SIZE_K took so long, over 10 us."""
    definition = load_definition(SPACE, {"ENGINE": engine})
    spec = definition.spec
    workloads = {key: Workload.of({"M": key[0], "N": key[1].n, "K": key[1].k}) for key in times}
    made = manifest(
        kernel=spec.name,
        space=spec.path,
        template=spec.template,
        space_sha=file_sha(spec.path),
        template_sha=file_sha(spec.template),
        source_sha=file_sha(spec.source),
        device="cuda",
        workloads=tuple(workloads.values()),
        operators={"ENGINE": engine},
    )
    with Session.create(folder, made, {**ENVIRONMENT, **environment}) as session:
        text = load_template(spec, definition.space).text
        session.add_candidate(INITIAL, text, spec.path.read_text("utf-8"))
        for key, of_steps in times.items():
            rows = max(16, min(128, key[0]))
            ours = {
                Variant(INITIAL, Config.of(config(rows, step))): us for step, us in of_steps.items()
            }
            best = min(ours, key=ours.__getitem__)
            session.append(comparison(workloads[key], {best: ours[best]}))
            for variant, us in ours.items():
                # Steps of 32 add up in an order of their own.
                bits = "other" if variant.config["BLOCK_SIZE_K"] == 32 else "same"
                right = Correctness(passed=True, bits=bits)
                session.record(replace(trial(workloads[key], variant, us), correctness=right))
        if kept:
            bits = {workload.key: "same" for workload in workloads.values()}
            session.record_event(BitsKept(0, bits))
        session.mark("complete")
    return folder


TIMES = {(1, QKV): {64: 5.0}, (64, QKV): {64: 4.0, 128: 5.0}, (1, OUT): {64: 8.0}}
