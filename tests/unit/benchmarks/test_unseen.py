"""The spaces that no constant was chosen on: they load, are right on the CPU, and stay unknown."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import search
from shipped_kernels import Sample, start_samples

from tuner.app.record import recording_path
from tuner.extensions.cpu.compiler import HostCompiler
from tuner.extensions.cpu.device import HostDevice
from tuner.model.kernel import Workload
from tuner.model.trial import Status
from tuner.search.pool import valid_configs
from tuner.space.load import Definition, load_definition
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator

ROOT, FOLDER = search.ROOT, search.UNSEEN
NAMES = ("key_histogram", "layer_norm_backward_weights", "stencil_3d", "tiled_matmul_f32")
FEWEST, MOST = 300, 1500
SAMPLE = 8
# Small, and no multiple of what a block handles.
WORKLOADS: Mapping[str, Mapping[str, int]] = {
    "key_histogram": {"N": 300_007, "B": 5},
    "layer_norm_backward_weights": {"T": 301, "H": 264},
    "stencil_3d": {"Z": 21, "Y": 19, "X": 140},
    "tiled_matmul_f32": {"M": 70, "N": 140, "K": 84},
}


@pytest.fixture(scope="module", params=NAMES)
def definition(request: pytest.FixtureRequest) -> Definition:
    name: str = request.param
    return load_definition(FOLDER / name / f"{name}.yaml")


@pytest.fixture(scope="module")
def device(definition: Definition) -> Iterator[HostDevice]:
    device = HostDevice(definition.spec, {})
    yield device
    device.close()


@pytest.fixture(scope="module")
def evaluator(definition: Definition, compiler: HostCompiler, device: HostDevice) -> Evaluator:
    spec = definition.spec
    template = Template.load(spec.template, spec.include_dirs)
    candidate = Candidate("template", definition.space, template)
    return Evaluator(spec, candidate, {}, compiler, device)


def test_every_folder_is_one_of_the_kernels() -> None:
    assert tuple(sorted(path.name for path in FOLDER.iterdir() if path.is_dir())) == NAMES


def test_a_space_is_neither_small_nor_too_large_to_be_measured_whole(
    definition: Definition, evaluator: Evaluator
) -> None:
    tuned = [one for one in definition.spec.workloads if not one.held_out]
    assert len(tuned) == len(definition.spec.workloads) == 2
    for workload in tuned:
        pool = valid_configs(definition.space, evaluator.names(workload))
        assert FEWEST <= len(pool) <= MOST


def test_a_recording_is_made_where_the_benchmark_looks(
    definition: Definition, device: HostDevice, tmp_path: Path
) -> None:
    name = definition.spec.name
    shutil.copytree(FOLDER / name, tmp_path / name, ignore=lambda *_: ["recordings"])
    copy = load_definition(tmp_path / name / f"{name}.yaml")
    path = recording_path(copy.spec, device)
    path.parent.mkdir(parents=True)
    path.touch()
    assert search.files_of(tmp_path) == [path]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_baseline_is_right(definition: Definition, evaluator: Evaluator) -> None:
    trial = evaluator.baseline(Workload.of(WORKLOADS[definition.spec.name]))
    assert trial.status is Status.CORRECT, trial.reason


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_configs_of_the_template_are_right(definition: Definition, evaluator: Evaluator) -> None:
    sample = Sample(WORKLOADS[definition.spec.name], SAMPLE)
    (started,) = start_samples(evaluator, definition.space, [sample]).values()
    for pending in started:
        trial = evaluator.finish(pending)
        assert trial.status is Status.CORRECT, f"{trial.config}: {trial.reason}"


@pytest.mark.parametrize("folder", ["tuner", "search_spaces"])
def test_nothing_that_searches_knows_them(folder: str) -> None:
    names = re.compile("|".join(NAMES) + "|benchmarks/unseen")
    files = [path for path in (ROOT / folder).rglob("*") if path.suffix not in (".pyc", ".xz")]
    texts = {path: path.read_text(encoding="utf-8") for path in files if path.is_file()}
    assert texts
    known = [path for path, text in texts.items() if names.search(f"{path.name}\n{text}")]
    assert known == []
