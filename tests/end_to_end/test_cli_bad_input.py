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


def edited_recording(project, change) -> None:
    (path,) = (project.root / "kernels/recordings").glob("*/*")
    content = json.loads(lzma.decompress(path.read_bytes()))
    change(content)
    path.write_bytes(lzma.compress(json.dumps(content).encode()))


def trials_in(session: Path) -> int:
    with closing(sqlite3.connect(session / "session.db")) as connection:
        (count,) = connection.execute(
            "select count(*) from records where kind = 'trial'"
        ).fetchone()
    return count


# What `check` and a run both refuse


@pytest.fixture(params=["check", "run"])
def refuse(request: pytest.FixtureRequest, project, tune):
    """Assert that checking and running both refuse the project, and that a run leaves nothing."""
    words = ["check", project.space] if request.param == "check" else [project.kernel, "--json"]

    def refused(*parts: str) -> None:
        assert_refused(tune(*words), *parts)
        for session in (project.root / "sessions").glob("*"):
            assert trials_in(session) > 0, "refused before a trial: the folder should be gone"

    return refused


BODY = "2.0f * in[first + k]"
# Of each kind of mistake one; the file, what stands there, what takes its place, what is said.
MISTAKES = {
    "an unknown key": ("space", "constraints:", "constrains:", ["scale.yaml:", "constrains"]),
    "a name that is not declared": (
        *("template", "@{ per_thread }@", "@{ per_thread * rows }@"),
        ["scale.cu.j2:2", "rows"],
    ),
    "a kernel that compiles in no config": (
        *("template", BODY, "2.0f * input[first + k]"),
        ["none of ", "scale.cu.j2", "9", '"input" is undefined'],
    ),
    "an argument list that is not the kernel's": (
        *("space", "  - {name: N, dtype: int32, value: N}\n", ""),
        ["scale"],
    ),
    "an argument of another type": (
        *("space", "{name: out, dtype: float32", "{name: out, dtype: float64"),
        ["out", "float64"],
    ),
    "a baseline that does not compile": (
        *("kernel", "2.0f * in[i]", "2.0f * input[i]"),
        ["scale.cu", "input"],
    ),
}


@pytest.mark.parametrize(("file", "old", "new", "told"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_a_file(project, refuse, file: str, old: str, new: str, told) -> None:
    project.edit(getattr(project, file), old, new)
    refuse(*told)


def test_a_parameter_that_nothing_uses(project, refuse) -> None:
    project.edit(project.space, "parameters:", "parameters:\n  unroll: [1, 2]")
    project.edit(project.space, "default: {", "default: {unroll: 1, ")
    refuse("unroll")


def test_a_place_is_written_from_the_current_folder(project, tune) -> None:
    project.edit(project.template, "@{ per_thread }@", "@{ rows }@")
    assert_refused(tune("check", project.space), "Error: templates/scale.cu.j2:2: ")


def test_no_valid_config(project, refuse) -> None:
    project.edit(project.space, "per_thread <= 1024", "per_thread <= N // 4096")
    project.edit(project.space, "default: {block_size: 256, per_thread: 1}\n", "")
    refuse("scale.yaml:", "no config satisfies", "N=4096")


def test_a_missing_template(project, refuse) -> None:
    project.template.unlink()
    refuse("scale.yaml:", "scale.cu.j2")


# What only a run can meet


def test_a_baseline_that_is_wrong_against_its_reference(project, tune) -> None:
    def spoil(content) -> None:
        for workload in content["workloads"].values():
            wrong = {"status": "incorrect", "reason": "out[0] is 3, not 2"}
            workload["programs"][workload["baseline"]] = wrong

    edited_recording(project, spoil)
    wrong = "the baseline is wrong against its reference on N=4096: out[0] is 3"
    assert_refused(tune(project.kernel, "--json"), wrong, "scale.py")
    assert not (project.root / "sessions").exists()


def test_a_refusal_before_the_first_measurement_spares_the_folder_that_was_there(
    project, tune
) -> None:
    mine = project.root / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("keep", encoding="utf-8")
    assert_refused(
        tune(project.kernel, "--json", "--session", mine / "run", "--workload", "N=5"), "N=5"
    )
    assert_refused(tune(project.kernel, "--json", "--session", mine, "--workload", "N=5"), "N=5")
    assert [path.name for path in mine.iterdir()] == ["notes.txt"]


def test_a_template_that_does_not_render_costs_no_measurement(project, tune) -> None:
    project.edit(project.template, "@{ per_thread }@", "@{ per_thread // 0 }@")
    assert_refused(tune(project.kernel, "--json"), "scale.cu.j2:2", "division")
    assert not (project.root / "sessions").exists()


def test_an_empty_folder_name_is_not_the_current_folder(project, tune) -> None:
    before = set(project.root.iterdir())
    assert_refused(tune(project.kernel, "--session", ""), "--session", "no folder is named")
    assert_refused(tune("--resume", " "), "--resume", "no folder is named")
    assert set(project.root.iterdir()) == before


def test_something_else_in_place_of_a_search_space(project, tune) -> None:
    for path in (project.kernel, project.template):
        assert_refused(tune("check", path), "is not a search space", "scale.yaml")
        assert_refused(tune("render", path), "is not a search space", "scale.yaml")


def test_a_draft_with_blanks_left_lists_them_all(project, refuse) -> None:
    project.edit(project.space, "value: N}", "value: FILL_IN}  # FILL IN: the value of N")
    project.edit(project.space, "min_bytes: 8 * N", "min_bytes: FILL_IN")
    refuse(
        "scale.yaml: 2 blanks are left to fill in",
        "scale.yaml:11: the value of N",
        "scale.yaml:15: a value for FILL_IN",
    )


def test_a_drafted_reference_that_nobody_wrote(project, refuse) -> None:
    body = 'raise ValueError("fill in reference() in scale.py: return ...")'
    project.edit(project.kernel.with_suffix(".py"), 'return {"out": 2.0 * inputs["in"]}', body)
    refuse("scale.py:5: still to fill in: the body of reference()")


def test_a_workload_that_breaks_a_constraint(project, tune) -> None:
    project.edit(project.space, "constraints:", "constraints:\n  - N % 4 == 0")
    assert_refused(tune(project.kernel, "--json", "--workload", "N=4095"), "`N % 4 == 0`", "N=4095")


@pytest.mark.parametrize(
    "text", ["4096", "M=4096", "N=0", "N=-1", "N=x", "N=1,N=2", "", "N=2147483648"]
)
def test_a_workload_that_cannot_be_read(project, tune, text: str) -> None:
    assert_refused(tune(project.kernel, "--json", "--workload", text), f"workload {text!r}", "N=1")
    assert not (project.root / "sessions").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "--device cuda",
            ["no NVIDIA GPU was found", "--device recorded would answer", "scale.json"],
        ),
        ("--device rocm", ["'rocm'", "recorded:FILE"]),
        ("--workload N=5", ["no measurements for workload N=5", "N=4096 N=1048576 N=100000"]),
        ("--searcher kernel_tuner:guessing", ["guessing", "genetic_algorithm"]),
        ("--operator ACTIVATION=gelu", ["no operator choice named 'ACTIVATION'"]),
    ],
)
def test_an_option_that_cannot_be_had(project, tune, words: str, told) -> None:
    assert_refused(tune(project.kernel, "--json", *words.split()), *told)
    assert not (project.root / "sessions").exists()


@pytest.mark.parametrize(
    ("device", "why"),
    [
        ("recorded", "--device recorded cannot be recorded: its times were measured before"),
        (f"recorded:{RECORDING}", f"--device recorded:{RECORDING} cannot be recorded"),
        ("host", "--device host cannot be recorded: the CPU's times say nothing of a GPU's"),
    ],
)
def test_what_does_not_measure_is_not_recorded(project, tune, device: str, why: str) -> None:
    before = (project.root / RECORDING).read_bytes()
    result = tune("record", project.kernel, "--device", device, "--gpus", "2")
    assert_refused(result, why, "a recording is made on a GPU or an OpenCL device: --device cuda")
    recordings = (project.root / "kernels/recordings").glob("*/*")
    assert [one.read_bytes() for one in recordings] == [before]
    assert not (project.root / "sessions").exists()


def test_auto_never_records_a_recording(project, tune) -> None:
    result = tune("record", project.kernel, "--device", "auto")
    assert_refused(result, "no NVIDIA GPU was found")


def test_the_session_of_a_recording_is_not_recorded(session: Path, tune) -> None:
    assert_refused(tune("record", "--resume", session), "--device recorded cannot be recorded")


def test_no_gpu_and_no_recording(project, tune) -> None:
    for path in (project.root / "kernels/recordings").glob("*/*"):
        path.unlink()
    assert_refused(tune(project.kernel, "--json"), "no GPU here and no recording", "tune record")


def test_a_space_that_is_for_another_kernel(project, tune) -> None:
    other = project.root / "kernels/other.cu"
    other.write_text("", encoding="utf-8")
    assert_refused(tune(other, "--space", project.space), "is for ", "scale.cu, not for", "--space")


# Sessions


@pytest.fixture
def session(project, tune) -> Path:
    """A finished session."""
    result = tune(project.kernel, "--trials", "1", "--quiet", "--session", "mine")
    assert result.exit_code == 0, result.output
    return project.root / "mine"


def test_a_session_written_by_a_newer_version(session: Path, tune) -> None:
    with closing(sqlite3.connect(session / "session.db")) as connection:
        connection.execute("pragma user_version = 999")
    before = (session / "session.db").read_bytes()
    assert_refused(tune("--resume", session), "newer", "999")
    assert_refused(tune("report", session), "newer")
    assert (session / "session.db").read_bytes() == before


def test_a_folder_that_is_no_session(project, tune) -> None:
    assert_refused(tune("--resume", project.root / "kernels"), "kernels")


def test_a_new_session_in_the_folder_of_another(project, session: Path, tune) -> None:
    assert_refused(tune(project.kernel, "--json", "--session", session), "mine", "--resume")


@pytest.mark.parametrize("name", ["space", "template", "kernel"])
def test_a_file_that_changed_since_the_session_began(project, session, tune, name: str) -> None:
    path = getattr(project, name)
    path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert_refused(tune("--resume", session), "changed since the session began", path.name)


@pytest.mark.parametrize("directive", ["#include", "//% include"])
def test_a_header_that_changed_since_the_session_began(project, tune, directive: str) -> None:
    headers = project.root / "headers"
    headers.mkdir()
    (headers / "two.cuh").write_text("constexpr float kTwo = 2.0f;\n", encoding="utf-8")
    space, text = project.space, project.template.read_text(encoding="utf-8")
    project.template.write_text(f'{directive} "two.cuh"\n{text}', encoding="utf-8")
    named = space.read_text(encoding="utf-8") + "\ninclude: [../headers]\n"
    space.write_text(named, encoding="utf-8")
    result = tune(project.kernel, "--trials", "1", "--quiet", "--session", "mine")
    assert result.exit_code == 0, result.output
    assert tune("--resume", "mine", "--quiet").exit_code == 0
    (headers / "two.cuh").write_text("constexpr float kTwo = 3.0f;\n", encoding="utf-8")
    assert_refused(tune("--resume", "mine"), "changed since the session began", "headers")


def test_an_option_that_the_session_was_not_started_with(session: Path, tune) -> None:
    result = tune("--resume", session, "--trials", "7", "--seed", "3", "--quiet")
    assert_refused(result, "--trials, --seed: not what the session was started with")


def test_the_command_that_started_a_session_is_told_as_a_shell_takes_it(project, tune) -> None:
    done = tune(project.kernel, "--trials", "1", "--quiet", "--session", "my runs (1)")
    assert done.exit_code == 0, done.output
    result = tune("--resume", "my runs (1)", "--trials", "7")
    assert_refused(result, "--session 'my runs (1)'` started this one")


def test_the_options_that_a_session_was_started_with_may_be_repeated(
    project, session: Path, tune
) -> None:
    result = tune(project.kernel, "--resume", session, "--trials", "1", "--json", "--jobs", "1")
    assert result.exit_code == 0, result.output


def test_a_recording_that_changed_since_the_session_began(project, session: Path, tune) -> None:
    edited_recording(project, lambda content: content.update(created="2026-12-01T00:00:00+00:00"))
    assert_refused(tune("--resume", session), "the recording was", "must not mix")


@pytest.mark.parametrize(
    ("gpus", "told"),
    [
        ("some", "--gpus 'some' is no list of GPUs"),
        ("0,0", "--gpus '0,0' is no list of GPUs"),
        ("0", "--gpus 0 asks for 0 members of --device recorded"),
        ("", "no GPU is named"),
    ],
)
def test_gpus_that_nobody_has(project, tune, gpus: str, told: str) -> None:
    assert_refused(tune(project.kernel, "--device", "recorded", "--gpus", gpus, "--json"), told)
    assert not (project.root / "sessions").exists()


def test_gpus_for_a_session_that_began_on_one_device(session: Path, tune) -> None:
    result = tune("--resume", session, "--gpus", "2", "--quiet")
    assert_refused(result, "--gpus: not what the session was started with")
