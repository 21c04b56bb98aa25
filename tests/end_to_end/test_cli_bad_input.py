"""Bad input: one clear message, exit code 2, and nothing left behind or lost."""

from __future__ import annotations

import json
import lzma
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import Result

RECORDING = "kernels/recordings/nvidia-h200/scale.json.xz"


def assert_refused(result: Result, *parts: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    for part in parts:
        assert part in result.stderr
    assert result.stderr.count("Error:") == 1


def trials_in(session: Path) -> int:
    with closing(sqlite3.connect(session / "session.db")) as connection:
        (count,) = connection.execute(
            "select count(*) from records where kind = 'trial'"
        ).fetchone()
    return count


BODY = "2.0f * in[first + k]"
Edit = tuple[str, str, str]
# Of each kind of mistake one: the file, what stands there, what takes its place; what is said.
MISTAKES: dict[str, tuple[list[Edit], list[str]]] = {
    "an unknown key": (
        [("space", "constraints:", "constrains:")],
        ["scale.yaml:", "constrains"],
    ),
    "a name that is not declared": (
        [("template", "@{ per_thread }@", "@{ per_thread * rows }@")],
        ["Error: templates/scale.cu.j2:2: ", "rows"],
    ),
    "a kernel that compiles in no config": (
        [("template", BODY, "2.0f * input[first + k]")],
        ["none of ", "scale.cu.j2", "9", '"input" is undefined'],
    ),
    "an argument list that is not the kernel's": (
        [("space", "  - {name: N, dtype: int32, value: N}\n", "")],
        ["scale"],
    ),
    "an argument of another type": (
        [("space", "{name: out, dtype: float32", "{name: out, dtype: float64")],
        ["out", "float64"],
    ),
    "a baseline that does not compile": (
        [("kernel", "2.0f * in[i]", "2.0f * input[i]")],
        ["scale.cu", "input"],
    ),
    "a parameter that nothing uses": (
        [
            ("space", "parameters:", "parameters:\n  unroll: [1, 2]"),
            ("space", "default: {", "default: {unroll: 1, "),
        ],
        ["unroll"],
    ),
    "no valid config": (
        [
            ("space", "per_thread <= 1024", "per_thread <= N // 4096"),
            ("space", "default: {block_size: 256, per_thread: 1}\n", ""),
        ],
        ["scale.yaml:", "no config satisfies", "N=4096"],
    ),
    "a missing template": (
        [("space", "templates/scale.cu.j2", "templates/none.cu.j2")],
        ["scale.yaml:", "none.cu.j2"],
    ),
    "blanks of a draft": (
        [
            ("space", "value: N}", "value: FILL_IN}  # FILL IN: the value of N"),
            ("space", "min_bytes: 8 * N", "min_bytes: FILL_IN"),
        ],
        [
            "scale.yaml: 2 blanks are left to fill in",
            "scale.yaml:11: the value of N",
            "scale.yaml:15: a value for FILL_IN",
        ],
    ),
    "a drafted reference that nobody wrote": (
        [
            (
                "reference",
                'return {"out": 2.0 * inputs["in"]}',
                'raise ValueError("fill in reference() in scale.py: return ...")',
            )
        ],
        ["scale.py:5: still to fill in: the body of reference()"],
    ),
}


@pytest.mark.parametrize(("edits", "told"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_a_file_is_refused_by_a_check_and_by_a_run_that_leaves_nothing(
    project, tune, edits: list[Edit], told: list[str]
) -> None:
    for file, old, new in edits:
        place = project.kernel.with_suffix(".py") if file == "reference" else getattr(project, file)
        project.edit(place, old, new)
    assert_refused(tune("check", project.space), *told)
    assert_refused(tune(project.kernel, "--json"), *told)
    for session in (project.root / "sessions").glob("*"):
        assert trials_in(session) > 0, "refused before a trial: the folder should be gone"


def test_a_template_that_does_not_render_costs_no_measurement(project, tune) -> None:
    project.edit(project.template, "@{ per_thread }@", "@{ per_thread // 0 }@")
    assert_refused(tune(project.kernel, "--json"), "scale.cu.j2:2", "division")
    assert not (project.root / "sessions").exists()


def test_files_that_are_not_what_they_are_given_for(project, tune) -> None:
    for path in (project.kernel, project.template):
        assert_refused(tune("check", path), "is not a search space", "scale.yaml")
        assert_refused(tune("render", path), "is not a search space", "scale.yaml")
    other = project.root / "kernels/other.cu"
    other.write_text("", encoding="utf-8")
    refused = tune(other, "--space", project.space)
    assert_refused(refused, "is for ", "scale.cu, not for", "--space")
    assert_refused(tune("--resume", project.root / "kernels"), "kernels")


WORKLOADS = ("4096", "M=4096", "N=0", "N=-1", "N=x", "N=1,N=2", "", "N=2147483648")
# The words of a run that cannot be, and what is said.
WORDS: list[tuple[tuple[str, ...], list[str]]] = [
    *((("--workload", text), [f"workload {text!r}", "N=1"]) for text in WORKLOADS),
    (("--workload", "N=4095"), ["`N % 4 == 0`", "N=4095"]),
    (("--workload", "N=8"), ["no measurements for workload N=8", "N=4096 N=1048576 N=100000"]),
    (
        ("--device", "cuda"),
        ["no NVIDIA GPU was found", "--device recorded would answer", "scale.json"],
    ),
    (("--device", "rocm"), ["'rocm'", "recorded:FILE"]),
    (("--searcher", "kernel_tuner:guessing"), ["guessing", "genetic_algorithm"]),
    (("--operator", "ACTIVATION=gelu"), ["no operator choice named 'ACTIVATION'"]),
    (("--session", ""), ["--session", "no folder is named"]),
    (("--resume", " "), ["--resume", "no folder is named"]),
    (("--gpus", "some"), ["--gpus 'some' is no list of GPUs"]),
    (("--gpus", "0,0"), ["--gpus '0,0' is no list of GPUs"]),
    (("--device", "recorded", "--gpus", "0"), ["--gpus 0 asks for 0 members of --device recorded"]),
    (("--gpus", ""), ["no GPU is named"]),
]


def test_words_that_cannot_be_leave_every_folder_as_it_was(project, tune) -> None:
    project.edit(project.space, "constraints:", "constraints:\n  - N % 4 == 0")
    mine = project.root / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("keep", encoding="utf-8")
    before = set(project.root.rglob("*"))
    for words, told in WORDS:
        assert_refused(tune(project.kernel, "--json", *words), *told)
        assert set(project.root.rglob("*")) == before, words
    for session in (mine / "run", mine):
        words = ("--json", "--session", session, "--workload", "N=8")
        assert_refused(tune(project.kernel, *words), "N=8")
        assert set(project.root.rglob("*")) == before
    for path in (project.root / "kernels/recordings").glob("*/*"):
        path.unlink()
    assert_refused(tune(project.kernel, "--json"), "no GPU here and no recording", "tune record")


def test_what_does_not_measure_is_not_recorded(project, session: Path, tune) -> None:
    before = (project.root / RECORDING).read_bytes()
    for device, why in (
        ("recorded", "--device recorded cannot be recorded: its times were measured before"),
        (f"recorded:{RECORDING}", f"--device recorded:{RECORDING} cannot be recorded"),
        ("host", "--device host cannot be recorded: the CPU's times say nothing of a GPU's"),
    ):
        result = tune("record", project.kernel, "--device", device, "--gpus", "2")
        remedy = "a recording is made on a GPU or an OpenCL device: --device cuda"
        assert_refused(result, why, remedy)
    result = tune("record", project.kernel, "--device", "auto")
    assert_refused(result, "no NVIDIA GPU was found")
    result = tune("record", "--resume", session)
    assert_refused(result, "--device recorded cannot be recorded")
    recordings = (project.root / "kernels/recordings").glob("*/*")
    assert [one.read_bytes() for one in recordings] == [before]
    assert not (project.root / "sessions").exists()


# Sessions


@pytest.fixture
def session(project, tune) -> Path:
    """A finished session of a kernel with headers of both kinds."""
    headers = project.root / "headers"
    headers.mkdir()
    for name in ("one", "two"):
        text = f"constexpr int k{name.title()} = 1;\n"
        (headers / f"{name}.cuh").write_text(text, encoding="utf-8")
    text = project.template.read_text(encoding="utf-8")
    lines = f'#include "one.cuh"\n//% include "two.cuh"\n{text}'
    project.template.write_text(lines, encoding="utf-8")
    text = project.space.read_text(encoding="utf-8")
    project.space.write_text(f"{text}\ninclude: [../headers]\n", encoding="utf-8")
    result = tune(project.kernel, "--trials", "1", "--quiet", "--session", "my runs (1)")
    assert result.exit_code == 0, result.output
    return project.root / "my runs (1)"


def test_a_session_goes_on_only_with_what_it_was_started_with(project, session: Path, tune) -> None:
    words = ("--trials", "1", "--json", "--jobs", "1")
    assert tune(project.kernel, "--resume", session, *words).exit_code == 0
    result = tune("--resume", "my runs (1)", "--enough", "0.1", "--seed", "3", "--quiet")
    assert_refused(result, "--enough, --seed: not what the session was started with")
    assert "--session 'my runs (1)'` started this one" in result.stderr
    result = tune("--resume", session, "--gpus", "2", "--quiet")
    assert_refused(result, "--gpus: not what the session was started with")
    result = tune(project.kernel, "--json", "--session", session)
    assert_refused(result, "my runs (1)", "--resume")


def test_a_file_that_changed_since_the_session_began(project, session: Path, tune) -> None:
    headers = (project.root / "headers").iterdir()
    for path in (project.space, project.template, project.kernel, *headers):
        text = path.read_text(encoding="utf-8")
        path.write_text(text + "\n", encoding="utf-8")
        named = "headers" if path.suffix == ".cuh" else path.name
        assert_refused(tune("--resume", session), "changed since the session began", named)
        path.write_text(text, encoding="utf-8")


def test_a_recording_that_changed_since_the_session_began(project, session: Path, tune) -> None:
    (path,) = (project.root / "kernels/recordings").glob("*/*")
    content = json.loads(lzma.decompress(path.read_bytes()))
    content["created"] = "2026-12-01T00:00:00+00:00"
    path.write_bytes(lzma.compress(json.dumps(content).encode()))
    assert_refused(tune("--resume", session), "the recording was", "must not mix")
