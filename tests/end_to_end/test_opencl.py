"""`tune kernel.cl` as a user meets it: found, checked, tuned, resumed, and what is refused."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from faults import searched, started
from opencl_programs import needs_opencl

from tuner.cli import cli
from tuner.cli.exits import NOT_SHOWN

KERNEL = """\
__kernel void doubled(__global float* y, __global const float* x, int T) {
  const int i = get_global_id(0);
  if (i < T) y[i] = 2.0f * x[i];
}
"""
TEMPLATE = """\
#define PER_ITEM @{ per_item }@

__kernel __attribute__((reqd_work_group_size(@{ group_size }@, 1, 1))) void doubled(
    __global float* y, __global const float* x, int T) {
  const int first = get_global_id(0) * PER_ITEM;
  for (int i = first; i < min(first + PER_ITEM, T); ++i) y[i] = 2.0f * x[i];
}
"""
SPACE = """\
version: 1
kernel: doubled
source: ../kernels/doubled.cl
reference: ../kernels/doubled.py
template: ../templates/doubled.cl.j2
axes: [T]
arguments:
  - {name: y, dtype: float32, shape: [T], role: output}
  - {name: x, dtype: float32, shape: [T]}
  - {name: T, dtype: int32, value: T}
workloads: {tuned: [{T: 65536}], edge_cases: [{T: 5}]}
baseline:
  launch: [{kernel: doubled, grid: ["ceil_div(T, 64)"], block: [64]}]
parameters:
  group_size: [1, 64]
  per_item: [4, 1024]
launch:
  - {kernel: doubled, grid: ["ceil_div(T, per_item * group_size)"], block: [group_size]}
tolerance: {y: {relative: 1.0e-6}}
"""
REFERENCE = 'def reference(xp, inputs, axes):\n    return {"y": 2.0 * inputs["x"]}\n'
FILES = {
    "kernels/doubled.cl": KERNEL,
    "kernels/doubled.py": REFERENCE,
    "templates/doubled.cl.j2": TEMPLATE,
    "search_spaces/doubled.cl.yaml": SPACE,
}


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def tune() -> Callable[..., Result]:
    return lambda *words: CliRunner().invoke(cli, [*words])


def changed(path: str, old: str, new: str) -> None:
    text = Path(path).read_text(encoding="utf-8")
    assert old in text
    Path(path).write_text(text.replace(old, new), encoding="utf-8")


@needs_opencl
def test_a_kernel_is_recorded_and_its_recording_answers_without_a_platform(
    written, tune, monkeypatch
) -> None:
    made = tune("record", "kernels/doubled.cl", "--session", "s")
    assert made.exit_code == 0, made.stderr
    (path,) = Path("kernels/recordings").glob("*/*")
    assert path.name == "doubled.cl.json.xz"
    assert re.fullmatch(r"[\w.+-]+", path.parent.name)
    found = json.loads(tune("report", "s", "--json").stdout)
    assert found["on_cpu"] is False
    monkeypatch.setattr("tuner.extensions.backends.opencl.runtime._handles", list)
    words = ("--device", "recorded", "--session", "r", "--json", "--searcher", "exhaustive")
    done = tune("kernels/doubled.cl", *words)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["recorded"]
    assert Path("r/report.html").exists()
    assert [path.suffix for path in Path("r/tuned").iterdir()] == [".cl"]
    assert found["trials"]["correct"] == 4
    (result,) = found["workloads"]
    assert result["speedup"] > 0


# `tune`, which kills itself before the third trial is recorded, or before its recording is there.
KILLED = """
import itertools, os, pathlib, signal, sys
from tuner.cli import main
from tuner.session.session import Session
def kill_before(owner, name, is_it):
    function = getattr(owner, name)
    def call(*arguments):
        return os.kill(os.getpid(), 9) if is_it(*arguments) else function(*arguments)
    setattr(owner, name, call)
trials = itertools.count()
if sys.argv.pop(1) == "trial":
    kill_before(Session, "record", lambda *_: next(trials) == 2)
kill_before(pathlib.Path, "replace", lambda _, to: to.suffix == ".xz")
main()
"""


@pytest.mark.slow
@needs_opencl
def test_a_recording_loses_nothing_by_kills_as_it_grows_and_as_it_is_written(written, tune) -> None:
    session, recordings = Path("s"), Path("kernels/recordings")
    known: list[str] = []
    new, again = ("kernels/doubled.cl", "--session", "s"), ("--resume", "s")
    for when, words, count in (("trial", new, 2), ("file", again, 4)):
        with started(when, "record", *words, folder=written, program=("-c", KILLED)) as process:
            _, said = process.communicate(timeout=120)
        assert process.returncode == -signal.SIGKILL, said
        assert not list(recordings.glob("*/*.xz"))
        tried = [str(trial.config) for trial in searched(session)]
        assert (tried[: len(known)], len({*tried})) == (known, count)
        known = tried
    assert tune("record", *again).exit_code == 0
    assert [str(trial.config) for trial in searched(session)] == known
    assert [path.suffix for path in recordings.glob("*/[!.]*")] == [".xz"]


@needs_opencl
def test_mistakes_of_its_sources_are_one_error_with_their_line(written, tune) -> None:
    changed("kernels/doubled.cl", "2.0f * x[i]", "2.0f * z[i]")
    done = tune("kernels/doubled.cl")
    assert done.exit_code == 2
    assert "kernels/doubled.cl: does not compile:" in done.stderr
    assert "kernel.cl(3): error: use of undeclared identifier 'z'" in done.stderr
    changed("kernels/doubled.cl", "2.0f * z[i]", "2.0f * x[i]")
    changed("templates/doubled.cl.j2", "2.0f * x[i]", "2.0f * z[i]")
    done = tune("kernels/doubled.cl", "--session", "s")
    assert done.exit_code == 2
    assert "doubled.cl.j2:6: error: use of undeclared identifier 'z'" in done.stderr


@needs_opencl
@pytest.mark.slow
def test_a_check_takes_its_compilers_options_and_refuses_what_reaches_files(written, tune) -> None:
    options = "version: 1\noptions: [-cl-fast-relaxed-math, -DFACTOR=2.0f]"
    changed("search_spaces/doubled.cl.yaml", "version: 1", options)
    changed("kernels/doubled.cl", "2.0f", "FACTOR")
    found = tune("check", "search_spaces/doubled.cl.yaml", "--sample", "1")
    assert found.exit_code == NOT_SHOWN, found.stderr
    assert "no mistakes found" in found.stdout
    changed("search_spaces/doubled.cl.yaml", "2.0f]", "2.0f -I/etc]")
    refused = tune("check", "search_spaces/doubled.cl.yaml")
    assert refused.exit_code == 2
    assert "doubled.cl.yaml:2: the compiler option" in refused.stderr


@needs_opencl
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("block: [64]}", "block: [64], pdl: true}", "the launch of doubled has `pdl`"),
        ("kernel: doubled, grid", "kernel: halved, grid", "no kernel `halved`; the source has"),
    ],
)
def test_what_only_cuda_has_and_wrong_names_are_one_error(written, tune, old, new, said) -> None:
    changed("search_spaces/doubled.cl.yaml", old, new)
    assert_refused(tune("kernels/doubled.cl"), said)


def test_what_is_not_for_opencl_and_what_is_not_there_is_one_error(
    written, tune, monkeypatch
) -> None:
    for words, said in (
        (("kernels/doubled.cl", "--device", "cuda"), "--device cuda does not run OpenCL"),
        (("kernels/doubled.cl", "--device", "host"), "--device host does not run OpenCL"),
        (("init", "kernels/doubled.cl"), "`tune init` is not for OpenCL"),
        (("mutate", "search_spaces/doubled.cl.yaml"), "`tune mutate` is not for OpenCL"),
    ):
        assert_refused(tune(*words), said)
    # A recording in CUDA is none of the same kernel in OpenCL.
    Path("kernels/recordings/gpu").mkdir(parents=True)
    Path("kernels/recordings/gpu/doubled.json.xz").touch()
    done = tune("kernels/doubled.cl", "--device", "recorded")
    assert done.exit_code == 2
    assert "doubled.json.xz" not in done.stderr
    monkeypatch.setattr("tuner.extensions.backends.opencl.runtime._handles", list)
    done = tune("kernels/doubled.cl")
    assert "no OpenCL platform was found" in done.stderr or "pyopencl is not" in done.stderr
    assert_refused(done, "pip install -e '.[opencl]'")
    Path("search_spaces/doubled.cl.yaml").unlink()
    assert_refused(tune("kernels/doubled.cl"), "write one, for none is drafted for OpenCL")


@needs_opencl
def test_devices_are_listed_and_another_one_is_an_error_that_says_so(written, tune) -> None:
    (first, *_) = json.loads(tune("devices", "--json").stdout)["opencl"]
    assert first["device"] == "opencl:0"
    assert "opencl:0  " in tune("devices").stdout
    done = tune("kernels/doubled.cl", "--device", "opencl:99")
    assert_refused(done, "there is no OpenCL device 99")
    assert "`tune devices`" in done.stderr


def assert_refused(done: Result, said: str) -> None:
    assert done.exit_code == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
