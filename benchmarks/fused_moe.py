"""SGLang's fused MoE kernel on this GPU: spaces in full, and files for a whole model.

    python benchmarks/fused_moe.py check                        # does all of it run here?
    python benchmarks/fused_moe.py fleet  --work DIR [--columns 768] [--seed N] [--gpus 0,1]
    python benchmarks/fused_moe.py record --work DIR [--configs N] [--tokens 1,16,64,256,1024,4096]
                                       (each needs an NVIDIA GPU, SGLang 0.5.17 and sglang-kernel)

`fleet` makes the file of a slice of a model for 18 numbers of tokens as `tune fleet` does, with
what SGLang guesses without a file in the same rounds: of Qwen3-30B-A3B, or with --columns 256 or
2048 of DeepSeek-V3. `record` measures all valid configs that SGLang's
own script tunes, or N of them at random, and writes a recording; what compiles does so before
anything is timed. Both go on with what DIR holds, and `record` of all configs with what
fused_moe_figures.py keeps of the spaces, unless it is done --anew; their seconds are in
DIR/*.seconds.json. fused_moe_figures.py makes the result of it all.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.app.plan import RunOptions
    from tuner.compiler.base import Compiler, CompileRequest, CompileResult
    from tuner.model.progress import Progress
    from tuner.model.settings import GivenSettings
    from tuner.session.session import Session
    from tuner.space.plan import Plan

ROOT = Path(__file__).resolve().parents[1]
KERNEL = ROOT / "kernels/sglang/fused_moe.py"
SPACE = ROOT / "search_spaces/sglang/fused_moe.yaml"
# Of an expert of Qwen3-30B-A3B on one GPU.
COLUMNS = 768
TOKENS = (1, 16, 64, 256, 1024, 4096)
VALID = 1304  # of 1,920: the others' stages don't fit into shared memory
MODULUS = 1009
# A finalist is verified in full, which takes as long as timing thirty configs.
FINALISTS = 4
# Compiled first, for what they have in common: Triton distinguishes sizes by 16, and these differ.
FIRST = (64, 16, 1)
PEERS = ("without_file",)


def peers_of(asked: argparse.Namespace) -> tuple[str, ...]:
    """Name what is timed besides; nothing but kernels is on the CPU."""
    return () if asked.device == "host" else PEERS


@dataclass(frozen=True, slots=True)
class Slice:
    """What one GPU has of a model's experts."""

    experts: int
    hidden: int
    weights: str = "bf16"
    top_k: int = 8
    ep: int = 1


# By an expert's columns on one GPU: Qwen3-30B-A3B on one, two and four GPUs; DeepSeek-V3 on eight,
# with a slice of each expert or with 32 of them.
SLICES = {
    **dict.fromkeys((COLUMNS, 384, 192), Slice(128, 2048)),
    256: Slice(256, 7168, "fp8_block"),
    2048: Slice(32, 7168, "fp8_block", ep=8),
}


def axes_of(tokens: int, columns: int) -> str:
    """Name a workload of a model."""
    one = SLICES[columns]
    sizes = f"E={one.experts},N={columns},K={one.hidden},TOP_K={one.top_k},EP={one.ep}"
    return f"M={tokens},{sizes}"


def operators_of(columns: int, routing: str, *, two: bool = False) -> dict[str, str]:
    """Name the choices of a fleet's kernel: both GEMMs of a layer, with one config or two."""
    return {
        "PART": "both",
        "WEIGHTS": SLICES[columns].weights,
        "ROUTING": routing,
        "CONFIGS": "two" if two else "one",
    }


def sampled_space(folder: Path, configs: int) -> Path:
    """Write the space with about so many of its configs, the same ones every time."""
    text = SPACE.read_text(encoding="utf-8")
    for name in ("source", "reference"):
        text = text.replace(f"{name}: ../../kernels/sglang/fused_moe.py", f"{name}: {KERNEL}")
    if configs:
        first, mark, rest = text.partition("constraints:")
        comment, _, others = rest.partition("\n")
        text = f"{first}{mark}{comment}\n  - {sample(configs)}\n{others}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "fused_moe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def sample(configs: int) -> str:
    """Write the condition that leaves so many configs, the space's own ones among them."""
    from tuner.space.load import load_definition

    space = load_definition(SPACE).space
    own = [one for one in space.parameters if not one.name.startswith("down_")]
    # Of those that were tried, what leaves the most even shares of each parameter's values.
    factors = (435, 239, 800, 728, 92, 290)
    terms = [f"{one.name} * {factor}" for one, factor in zip(own, factors, strict=True)]
    number = f"({' + '.join(terms)})"
    kept = [f"{number} * {number} % {MODULUS} < {round(MODULUS * configs / VALID)}"]
    for config in (space.default, *space.suggestions):
        if config is not None:
            kept.append(" and ".join(f"{one.name} == {config[one.name]}" for one in own))
    return " or ".join(f"({one})" for one in kept)


@dataclass
class Seconds:
    """What took how long, kept in a file after each part; goes on with what the file has."""

    path: Path
    parts: list[tuple[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.path.exists():
            self.parts += map(tuple, json.loads(self.path.read_text(encoding="utf-8")))

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.parts.append((name, round(time.monotonic() - began_s, 1)))
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.parts) + "\n", encoding="utf-8")
            print(f"[{self.parts[-1][1]:7.1f} s] {name}", flush=True)


class Ahead:
    """A compiler that has compiled everything before it is asked for it; else the one behind it."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._known: dict[str, Future[CompileResult]] = {}

    @property
    def version(self) -> str:
        return self._compiler.version

    def submit(self, request: CompileRequest) -> Future[CompileResult]:
        known = self._known.get(request.source)
        return self._compiler.submit(request) if known is None else known

    def compile(self, requests: list[CompileRequest], limit_s: float) -> tuple[int, int]:
        """Compile what there is time for; give how many were, and how many failed."""
        under_way = {one.source: self._compiler.submit(one) for one in requests}
        done, late = wait(under_way.values(), timeout=limit_s)
        for one in late:
            one.cancel()
        self._known |= {source: one for source, one in under_way.items() if one in done}
        return len(done), sum(not one.result().ok for one in done)

    def close(self) -> None:
        self._compiler.close()


def requests_of(run: Any, ahead: Ahead) -> list[list[CompileRequest]]:
    """List what every config without a trial asks to be compiled, workload by workload."""
    from tuner.tuning.evaluator import evaluator_of
    from tuner.tuning.run import pools_of

    evaluator = evaluator_of(run.plan, ahead, run.device)
    pools = pools_of(run.plan, evaluator)
    order = sorted(pools, key=lambda one: (one.values["M"] not in FIRST, one.values["M"]))
    found = []
    for workload in order:
        tried = {one.config for one in run.session.trials("initial", workload)}
        configs = [one for one in pools[workload] if one not in tried]
        print(f"{workload.key}: {len(configs)} configs", flush=True)
        found.append([evaluator.request(workload, one) for one in configs])
    return found


def told(one: Progress) -> None:
    """Say every few seconds how far it is."""
    global _told_s  # noqa: PLW0603
    if time.monotonic() - _told_s > 10:
        _told_s = time.monotonic()
        best = [f"{w.workload.values['M']}:{w.done}/{w.budget}" for w in one.workloads if w.done]
        print(f"  {one.phase} {one.seconds:.0f} s, {one.trials_per_second:.1f}/s {' '.join(best)}")
        print(f"  {one.note}" if one.note else "", end="", flush=True)


_told_s = 0.0


class Told:
    """A listener that tells little."""

    def update(self, one: Progress) -> None:
        told(one)


def record(asked: argparse.Namespace) -> None:
    """Measure the space on all numbers of tokens, and write the recording."""
    from tuner.app.open import open_run
    from tuner.app.record import record as recorded
    from tuner.app.record import recording_path, recording_plan
    from tuner.device.recorded.recording import save_recording

    name = f"record-N{asked.columns}"
    seconds = Seconds(asked.work / f"{name}.seconds.json")
    session = asked.work / name
    resumed = session.exists()
    settings: GivenSettings = {"device": asked.device}
    if not resumed:
        settings = {
            "device": asked.device,
            "space": sampled_space(asked.work, asked.configs),
            "workloads": [axes_of(tokens, asked.columns) for tokens in asked.tokens],
            "operators": {"WEIGHTS": SLICES[asked.columns].weights},
            "peers": peers_of(asked),
            "time_s": asked.limit_s,
        }

    def changed(plan: Plan) -> Plan:
        plan = recording_plan(plan)
        return replace(plan, config=replace(plan.config, finalists=FINALISTS))

    with ExitStack() as stack:
        with seconds.of("open"):
            options = _options(session, changed)
            kernel = None if resumed else KERNEL
            run = open_run(stack, kernel, settings, options, resume=session if resumed else None)
        if not asked.configs and not asked.anew:
            know(run.session, run.plan)
        ahead = Ahead(run.compiler)
        left_s = asked.compile_s
        for requests in requests_of(run, ahead):
            with seconds.of(f"compile {len(requests)}"):
                began_s = time.monotonic()
                done, failed = ahead.compile(requests, max(left_s, 1.0))
                left_s -= time.monotonic() - began_s
                print(f"  {done} of {len(requests)}, {failed} not compiled", flush=True)
        with seconds.of("measure"):
            made = recorded(
                run.plan,
                session=run.session,
                device=run.device,
                compiler=ahead,
                listener=Told(),
            )
        path = recording_path(run.plan.spec, run.device)
        save_recording(made, path)
        copied = asked.work / path.name
        copied.write_bytes(path.read_bytes())
        print(f"{path} ({path.stat().st_size / 1024:.0f} KB)")


def know(session: Session, plan: Plan) -> None:
    """Give a session the trials of its spaces that are kept, so that only the rest is measured."""
    from fused_moe_figures import read_measured, space_of

    from tuner.process.files import read_text

    session.add_candidate(plan.candidate, plan.template.text, read_text(plan.spec.path))
    keys, weights = {one.key for one in plan.config.workloads}, plan.config.operators["WEIGHTS"]
    for one in read_measured():
        if one["workload"] not in keys or one["weights"] != weights:
            continue
        for trial in space_of(one).trials.values():
            if session.trial(plan.candidate, trial.workload, trial.config) is None:
                session.record(trial)


def _options(session: Path, change: Any) -> RunOptions:
    from tuner.app.plan import RunOptions

    command = ("benchmarks/fused_moe.py", "record")
    # Also of a session that another machine began: the kernel is this project's.
    return RunOptions(session=session, command=command, change=change, may_run=lambda *_: True)


def fleet(asked: argparse.Namespace) -> None:
    """Make the files of one slice of the model, as `tune fleet` does."""
    from tuner.extensions.engines.fleet import BATCHES, TuningJob, make

    name = f"fleet-N{asked.columns}{'-two' * asked.two}-seed{asked.seed}"
    seconds = Seconds(asked.work / f"{name}.seconds.json")
    settings: GivenSettings = {"device": asked.device, "peers": peers_of(asked), "seed": asked.seed}
    if asked.trials:
        settings["trials"] = asked.trials
    if asked.gpus:
        settings["gpus"] = asked.gpus
    job = TuningJob(
        name,
        "fused_moe",
        operators_of(asked.columns, asked.routing, two=asked.two),
        tuple(axes_of(tokens, asked.columns) for tokens in asked.tokens or BATCHES),
    )
    os.chdir(ROOT)
    with seconds.of("fleet"):
        made = make(
            [job],
            asked.work,
            asked.work / f"{name}.files",
            "sglang",
            "3.6.0",
            settings,
            say=lambda text: print(text, flush=True),
            progress=lambda _, one: told(one),
        )
    print("failed" if made.failed else "made", made.failed or list(made.configs.files))


def check(asked: argparse.Namespace) -> None:
    """Run a few configs of a small and of a large number of tokens, each part with its seconds."""
    import tuner

    seconds = Seconds(asked.work / "check.seconds.json")
    for tokens in asked.tokens or (16, 4096):
        with seconds.of(f"tune M={tokens}, {asked.trials or 8} trials"):
            found = tuner.tune(
                KERNEL,
                device=asked.device,
                space=sampled_space(asked.work, 0),
                workloads=[axes_of(tokens, asked.columns)],
                trials=asked.trials or 8,
                peers=peers_of(asked),
                session=asked.work / f"check-{tokens}",
                progress=told,
            )
        frame = found.to_pandas()
        left_out = ("E", "N", "K", "TOP_K", "EP", "candidate", "stage")
        shown = [name for name in frame if name not in left_out and "down_" not in name]
        frame = frame[shown].rename(columns=lambda name: name.removeprefix("config."))
        print(frame.to_string(max_colwidth=160), flush=True)
        print(found.winners().to_string(max_colwidth=200), flush=True)


def main() -> None:
    """Do what was asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("what", choices=("check", "fleet", "record"))
    parser.add_argument("--work", type=Path, default=Path("/tmp/moe"), metavar="DIR")  # noqa: S108
    parser.add_argument(
        "--columns", type=int, default=COLUMNS, choices=SLICES, help="of an expert on one GPU"
    )
    parser.add_argument("--configs", type=int, default=0, help="about so many at random; 0: all")
    parser.add_argument("--two", action="store_true", help="of `fleet`: a config for each GEMM")
    parser.add_argument("--trials", type=int)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--routing", default="real", help="of `fleet`; as `tune fleet` has it")
    parser.add_argument("--gpus", help="of `fleet`: over these of the host, as `tune` takes them")
    parser.add_argument("--tokens", type=lambda text: tuple(map(int, text.split(","))))
    parser.add_argument("--anew", action="store_true", help="of `record`: what is kept as well")
    parser.add_argument("--limit-s", type=float, default=None, help="of `record`'s search")
    parser.add_argument("--compile-s", type=float, default=300.0, help="of `record`'s compiling")
    asked = parser.parse_args()
    os.environ["TUNE_STORE"] = "none"
    if asked.what == "record":
        asked.tokens = asked.tokens or TOKENS
    {"check": check, "fleet": fleet, "record": record}[asked.what](asked)


if __name__ == "__main__":
    main()
