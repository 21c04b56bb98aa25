"""A made-up operator with everything that a launch can have, and sessions with its comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from manifests import manifest

from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Comparison, Measurement, Resources, Status, Trial, Variant
from tuner.session.records import file_sha
from tuner.session.session import Session
from tuner.space.load import load_definition

FILES = Path(__file__).parent / "blend"
SPACE = (FILES / "blend.yaml").read_text("utf-8")
BODY = (FILES / "body.cu").read_text("utf-8")
SOURCE = f"constexpr int kWidth = 0;\n{BODY}"
TEMPLATE = f"constexpr int kWidth = @{{ D if specialize else 0 }}@;  // @{{ wide }}@\n{BODY}"
REFERENCE = """\
def reference(xp, inputs, axes):
    return {"out": 2.0 * inputs["x"]}
"""
ENVIRONMENT = {"device": "NVIDIA H200", "architecture": "sm_90a", "multiprocessors": "132"}
ONE, SOME, MANY = (Workload.of({"T": size, "D": 4096}) for size in (1, 64, 1024))
NEAR = Workload.of({"T": 3, "D": 4096}, held_out=True)
FAR = Workload.of({"T": 500, "D": 8192}, held_out=True)
ROUNDS = 40
BASELINE_US = 10.0


def config(
    block: int = 128, *, wide: bool = False, specialize: bool = False, programmatic: bool = False
) -> Config:
    """Make a config of the operator."""
    return Config.of(
        {"block": block, "wide": wide, "specialize": specialize, "programmatic": programmatic}
    )


def variant(block: int = 128, **choices: bool) -> Variant:
    """Make a variant of the template."""
    return Variant(INITIAL, config(block, **choices))


def comparison(workload: Workload, times_us: Mapping[Variant, float]) -> Comparison:
    """Compare variants with a baseline of 10 us; all drift alike and scatter by 0.1 %."""
    rows = []
    for i in range(ROUNDS):
        drift = 1.0 + 0.01 * i / ROUNDS
        scatter = [1.0 + 0.001 * ((i * 7 + k * 3) % 5 - 2) / 2 for k in range(len(times_us) + 1)]
        times = [BASELINE_US, *times_us.values()]
        rows.append(tuple(t * drift * s for t, s in zip(times, scatter, strict=True)))
    return Comparison(workload, tuple(times_us), tuple(rows))


def with_production(found: Comparison, time_us: float, name: str = "sgl-jit") -> Comparison:
    """Add the peer that production calls, which takes so long where the baseline takes 10 us."""
    rows = tuple((*row, row[0] * time_us / BASELINE_US) for row in found.rounds)
    return replace(found, rounds=rows, peers=(name,), production=name)


def trial(workload: Workload, one: Variant, time_us: float | None, *, early: bool = False) -> Trial:
    """Make a trial of the search; without a time it was wrong."""
    if time_us is None:
        return Trial(one.candidate, workload, one.config, Status.INCORRECT, "out[0]")
    return Trial(
        one.candidate,
        workload,
        one.config,
        Status.CORRECT,
        resources=Resources(32, static_shared_bytes=128),
        measurement=Measurement((time_us,) * 5, 20, 4, stopped_early=early),
    )


def write_project(folder: Path) -> Path:
    """Write the operator's files; return its search space."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"yaml": SPACE, "cu": SOURCE, "cu.j2": TEMPLATE, "py": REFERENCE}
    for suffix, text in texts.items():
        (folder / f"blend.{suffix}").write_text(text, encoding="utf-8")
    return folder / "blend.yaml"


def write_session(
    folder: Path,
    space: Path,
    comparisons: tuple[Comparison, ...] = (),
    trials: tuple[Trial, ...] = (),
    environment: Mapping[str, str] = ENVIRONMENT,
    weight: str = "",
) -> Path:
    """Write a session of the operator, or of a mix; return its folder."""
    spec = load_definition(space).spec
    made = manifest(
        kernel=spec.name,
        space=space,
        template=spec.template,
        space_sha=file_sha(space),
        template_sha=file_sha(spec.template),
        source_sha=file_sha(spec.source),
        device="cuda",
        workloads=spec.workloads,
        operators={"MAP": "twice"},
        mix=bool(weight),
        weight=weight,
        tuner_version="0",
        command=("tune", "blend.cu"),
        created="2026-01-01T00:00:00+00:00",
    )
    with Session.create(folder, made, environment) as session:
        text = spec.template.read_text(encoding="utf-8")
        session.add_candidate(INITIAL, text, space.read_text(encoding="utf-8"))
        for one in trials:
            session.record(one)
        for compared in comparisons:
            session.append(compared)
        session.mark("complete")
    return folder


A, B, C = variant(64), variant(128, wide=True), variant(256, specialize=True, programmatic=True)
# B serves all but the smallest within 2 %; nothing is proved on the smallest but A.
COMPARISONS = (
    comparison(ONE, {A: 5.0, B: 9.99}),
    comparison(SOME, {A: 4.9, B: 4.0, C: 3.97}),
    comparison(MANY, {B: 6.0, C: 6.4}),
    comparison(NEAR, {A: 6.0}),
    comparison(FAR, {B: 10.5}),
)
