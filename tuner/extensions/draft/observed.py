"""What a run of a fresh draft on the CPU shows: which of its lines are sure, which are wrong."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from tuner.app.check import NVIDIA_TARGET, target_info
from tuner.app.proofs import Proof, ProofFinding, prover
from tuner.device.verify.reference_process import ReferenceProcess
from tuner.extensions.draft.guesses import GUESSED, LIKELY, SURE, Evidence
from tuner.extensions.draft.inference import DraftArgument
from tuner.model.errors import TunerError
from tuner.process.files import atomic_write
from tuner.space.blanks import BLANK, blanks
from tuner.space.load import load_definition

# A draft is waited for: what takes longer is left to `tune check`.
LIMIT_S = 8.0
_MOST_BYTES = 4 << 20
# What sizes are multiples of: threads and vectors divide the first, nothing divides the second.
_EVEN, _ODD = (128, 32, 8, 4), (41, 11, 3, 1)
# Each axis has a number of its own, so that no two products agree by chance.
_FACTORS = ((3, 5, 7, 9, 11, 13, 15, 17, 19, 21), (5, 3, 11, 7, 13, 9, 17, 15, 21, 19))
_PATHS = re.compile(r"^(source|reference|template): .*$", re.MULTILINE)
_AXES = re.compile(r"^axes: \[([^\]]*)\]", re.MULTILINE)
_FIXED = re.compile(r"^  - \"?(\w+) == (\d+)\"?$", re.MULTILINE)
_TUNED = re.compile(r"^  tuned: .*$", re.MULTILINE)
_REFERENCE = "def reference(xp, inputs, axes, **operator):\n    raise NotImplementedError\n"

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen of each array at two sizes: it is as drafted, or what is wrong with it.

    `is_whole` tells that all of them were seen and nothing was wrong.
    """

    confirmed: frozenset[str] = frozenset()
    wrong: Mapping[str, ProofFinding] = field(default_factory=dict)
    is_whole: bool = False

    def see(self, argument: DraftArgument) -> DraftArgument:
        """Say of an argument how sure it is now."""
        name, is_array = argument.parameter.name, argument.role is not None
        if finding := self.wrong.get(name):
            seen = Evidence(GUESSED, f"the CPU shows, {finding.text}")
            is_inout = finding.whole and finding.role == "inout"
            role = "inout" if is_inout else argument.role
            return replace(argument, role=role, evidence=(*argument.evidence, seen))
        is_sure = name in self.confirmed if is_array else self.is_whole
        before, after = (LIKELY, SURE) if is_sure else (SURE, LIKELY)
        evidence = tuple(
            replace(one, certainty=after) if one.certainty == before else one
            for one in argument.evidence
        )
        return replace(argument, evidence=evidence)

    def see_launch(self, origin: str) -> str:
        """Say of the launch how sure it is now, by its line."""
        return origin if self.is_whole else re.sub(rf"^{SURE}\b", LIKELY, origin)


def observe(space: str, source: str) -> Observed:
    """Run the baseline of a drafted search space on the CPU, at two sizes.

    Nothing is seen where something else than sizes and the reference is left to fill in, where it
    does not run there, or where it takes too long.
    """
    every, ends_s = [*_sizes_of(space)], time.monotonic() + LIMIT_S
    for sizes in (every, every[:-1]):
        # what nothing divides may be no size of the kernel
        with suppress(TunerError, OSError), tempfile.TemporaryDirectory() as folder:
            return _agreed(_run(Path(folder), space, source, sizes, ends_s))
    return Observed()


_NAMES = {"source": "draft.cu", "reference": "draft.py", "template": "draft.cu.j2"}


def _sizes_of(space: str) -> Iterator[Sizes]:
    """Yield small sizes: the file's own, those that vectors divide, and those that nothing does."""
    match = _AXES.search(space)
    axes = re.findall(r"\w+", match[1]) if match is not None else []
    fixed = {name: int(size) for name, size in _FIXED.findall(space) if name in axes}
    own = re.search(r"^  tuned: \[\{([^}]*)\}", space, re.MULTILINE)
    known = dict(re.findall(r"(\w+): (\d+)", own[1])) if own is not None else {}
    if axes and known.keys() == {*axes}:
        yield {axis: int(size) for axis, size in known.items()}
    place = min(max(len(axes) - len(fixed), 1), len(_EVEN)) - 1
    for units, factors in ((_EVEN, 0), (_EVEN, 1), (_ODD, 1)):
        numbers = zip(axes, _FACTORS[factors], strict=False)
        yield {axis: fixed.get(axis, units[place] * factor) for axis, factor in numbers}


def _run(
    folder: Path, space: str, source: str, every: Sequence[Sizes], ends_s: float
) -> tuple[Proof, ...]:
    files = {key: folder / name for key, name in _NAMES.items()}
    for path, content in zip(files.values(), (source, _REFERENCE, ""), strict=True):
        atomic_write(path, content)
    text = _PATHS.sub(lambda m: f"{m[1]}: {files[m[1]]}", space)
    listed = (", ".join(f"{axis}: {size}" for axis, size in sizes.items()) for sizes in every)
    pairs = [f"{{{one}}}" for one in dict.fromkeys(listed)]
    filled = _TUNED.sub(f"  tuned: [{', '.join(pairs)}]", text)
    # the baseline has no parameters
    filled = filled.replace(f"  {BLANK}: [{BLANK}]", "  nothing: [1]")
    if blanks(filled):
        return ()
    path = folder / "draft.yaml"
    atomic_write(path, filled)
    spec = load_definition(path).spec
    small = [w for w in spec.tuned if spec.footprint_bytes(w) <= _MOST_BYTES]
    spec = replace(spec, tuned=tuple(small))
    with closing(ReferenceProcess(spec, {})) as reference:
        info = target_info(NVIDIA_TARGET)
        return prover().prove(spec, {}, info, reference, lambda _: True, ends_s - time.monotonic())


def _agreed(tried: Sequence[Proof]) -> Observed:
    """Take what two sizes show alike: all of it as drafted, or the same mistakes."""
    right = [proof for proof in tried if not (proof.open_because or proof.mistakes)]
    if len(right) > 1:
        confirmed = frozenset.intersection(
            *(frozenset(f.argument for f in proof.findings if f.whole) for proof in right)
        )
        return Observed(confirmed, {}, confirmed == {f.argument for f in right[0].findings})
    wrong = [proof for proof in tried if proof.mistakes]
    if right or len(wrong) < 2:
        return Observed()
    before, after = wrong[:2]
    known = {mistake.argument for mistake in before.mistakes}
    same = [mistake for mistake in after.mistakes if mistake.argument in known]
    return Observed(
        wrong={m.argument: replace(m, text=f"with {after.workload}, that {m.text}") for m in same}
    )
