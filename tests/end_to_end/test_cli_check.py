"""`tune check`, `tune render` and `tune devices` on a whole project."""

from __future__ import annotations

import json

from callable_project import SPACE, callable_project


def test_check_counts_configs_compiles_a_sample_and_runs_the_baseline(project, tune) -> None:
    done = tune("check", project.space)
    assert done.exit_code == 0, done.output
    assert "scale: 12 combinations" in done.stdout
    assert "of 8 sampled configs 8 compile within the limits, for sm_90a" in done.stdout
    assert "block_size=256 per_thread=1" in done.stdout
    assert "The baseline, run on the CPU with N=4096:" in done.stdout
    assert "`out` is written, and not read before; the last of its 4096 elements" in done.stdout
    assert done.stdout.splitlines()[-1] == "no mistakes found"
    done = tune("check", project.space, "--target", "sm_89", "--sample", "1", "--no-run")
    assert "for sm_89 with 128 multiprocessors" in done.stdout
    assert "run on the CPU" not in done.stdout


def test_check_prints_the_same_as_json(project, tune) -> None:
    # A sample of more than there are is all of them, each once.
    found = json.loads(tune("check", project.space, "--json", "--sample", "1" + "0" * 20).stdout)
    assert found["combinations"] == 12
    assert [w["valid"] for w in found["workloads"]] == [11, 11, 11]
    tried = [(str(s["workload"]), str(s["config"])) for s in found["sample"]]
    tuned = [w for w in found["workloads"] if not w["held_out"]]
    assert len(tried) == len({*tried}) == sum(w["valid"] for w in tuned)
    assert {s["status"] for s in found["sample"]} == {"compiled"}
    assert found["sample"][0]["config"] == {"block_size": 256, "per_thread": 1}
    assert found["sample"][0]["occupancy"] == 1.0
    assert found["sample"][0]["limiter"] == "warps"
    assert {one["argument"] for one in found["arguments"]} == {"in", "out"}
    assert found["not_shown"] == []


def test_check_says_whose_rows_are_kept(project, tune) -> None:
    words = ("check", project.space, "--no-run", "--sample", "1")
    assert "counts rows" not in tune(*words).stdout
    project.edit(project.space, "version: 1", "version: 1\nrows: {N: [out]}")
    said = "N counts rows of out, whose bits {} keeps in every batch: 3 workloads are sizes of 1 "
    assert said.format("--invariant") in tune(*words).stdout
    found = json.loads(tune(*words, "--json").stdout)
    assert found["rows"] == {"axis": "N", "outputs": ["out"]}
    project.edit(project.space, "rows:", "invariant:")
    assert said.format("every run") in tune(*words).stdout


def test_check_refuses_a_shape_that_the_baseline_goes_beyond(project, tune) -> None:
    project.edit(project.space, "shape: [N], role: input", "shape: [N - 1], role: input")
    done = tune("check", project.space)
    assert done.exit_code == 2
    assert "scale.yaml:10: `in` has 4095 elements, and the kernel reaches 4096" in done.stderr
    assert "`shape: [N]`" in done.stderr


def test_check_finds_a_reference_that_is_wrong(project, tune) -> None:
    text = "def reference(xp, inputs, axes):\n    return {'out': 2 * xp.abs(inputs['in'])}\n"
    project.kernel.with_suffix(".py").write_text(text, encoding="utf-8")
    done = tune("check", project.space, "--sample", "1")
    assert done.exit_code == 2
    assert "scale.yaml:9: `out` is not what the reference says with inputs 'normal'" in done.stderr
    assert "times the tolerance); mend scale.py, scale.cu or its `tolerance`" in done.stderr


def test_check_ends_with_a_code_of_its_own_where_it_could_not_compare(project, tune) -> None:
    asm = 'asm volatile("wgmma.fence.sync.aligned;"); if (i < N)'
    project.edit(project.kernel, "if (i < N)", asm)
    done = tune("check", project.space, "--sample", "1")
    assert done.exit_code == 5, done.output
    *_, before, last = done.stdout.splitlines()
    assert before == "no mistakes found"
    assert last.startswith("not shown: that the reference is right: ")
    assert "inline PTX" in last
    (told,) = json.loads(tune("check", project.space, "--json", "--sample", "1").stdout)[
        "not_shown"
    ]
    assert "inline PTX" in told
    assert tune("check", project.space, "--sample", "1", "--no-run").exit_code == 0


def test_a_run_ends_where_no_input_changes_the_outputs(project, tune) -> None:
    text = "def reference(xp, inputs, axes):\n    return {'out': xp.ones(axes['N'])}\n"
    project.kernel.with_suffix(".py").write_text(text, encoding="utf-8")
    done = tune(project.kernel, "--device", "host", "--trials", "1", "--quiet")
    assert done.exit_code == 2
    assert "scale.yaml:10: no output of the reference depends on the input `in`" in done.stderr
    assert "say `idle: REASON` where that is meant" in done.stderr


def test_check_counts_what_prune_leaves_and_a_limit_rejects(project, tune) -> None:
    keys = "prune: [per_thread <= 4]\nlimits: {max_registers: 11}\ntolerance:"
    project.edit(project.space, "tolerance:", keys)
    done = tune("check", project.space, "--no-run")
    assert done.exit_code == 0, done.output
    assert "valid configs  prune leaves" in done.stdout
    assert all("per_thread=8" not in line for line in done.stdout.splitlines())
    assert "rejected by a limit: " in done.stdout
    assert "registers" in done.stdout
    found = json.loads(tune("check", project.space, "--json", "--no-run").stdout)
    assert [(w["valid"], w["searched"]) for w in found["workloads"]] == [(11, 9)] * 3
    assert sum(found["rejected"].values()) > 0


def test_of_a_python_kernel_nothing_is_known_before_it_runs(tmp_path, tune) -> None:
    done = tune("check", callable_project(tmp_path) / SPACE, "--sample", "1")
    assert "no mistakes found" in done.stdout, done.output
    assert done.exit_code == 5
    assert "not shown: that the reference is right: " in done.stdout.splitlines()[-1]
    assert ": what it uses is not known before it runs\n" in done.stdout
    assert "not_recorded" not in done.stdout


def test_an_unknown_target_is_told_the_known_ones(project, tune) -> None:
    done = tune("check", project.space, "--target", "sm_99")
    assert done.exit_code == 2
    assert "unknown target 'sm_99'\n  targets: sm_75 sm_80" in done.stderr


def test_a_reference_that_cannot_be_right_is_a_mistake(project, tune) -> None:
    for text, told in (
        ("def compute(): ...\n", "scale.py: defines no `reference` function"),
        (
            "def reference(xp, inputs, axes):\n    return {'out': xp.ones(1), 'y': xp.ones(1)}\n",
            "scale.py:1: the reference returns",
        ),
        (
            "def reference(xp, inputs, axes):\n    return inputs['in']\n",
            "scale.py:1: `reference` returns a value of type ndarray, not a dict of arrays by "
            "name\n  return {'out': ...}",
        ),
    ):
        project.kernel.with_suffix(".py").write_text(text, encoding="utf-8")
        done = tune("check", project.space)
        assert done.exit_code == 2
        assert told in done.stderr


def test_render_prints_the_source_alone(project, tune) -> None:
    done = tune("render", project.space, "per_thread=4", "block_size=128")
    assert done.exit_code == 0
    assert done.stderr == ""
    assert done.stdout.startswith("constexpr int kBlockSize = 128;\nconstexpr int kPerThread = 4;")
    assert done.stdout.endswith("}\n")
    # The rest is of the default config.
    assert "kBlockSize = 256" in tune("render", project.space, "per_thread=4").stdout


def test_render_says_what_is_wrong_with_a_value(project, tune) -> None:
    def refuse(words: list[str], message: str) -> None:
        done = tune("render", project.space, *words)
        assert done.exit_code == 2
        assert message in done.stderr

    refuse(["per_thread=3"], "per_thread cannot be '3'\n  values: 1, 2, 4, 8")
    refuse(["unroll=3"], "no parameter named 'unroll'\n  parameters: block_size, per_thread")
    refuse(["per_thread"], "'per_thread' is not NAME=VALUE")
    refuse(["per_thread=1", "per_thread=2"], "parameter per_thread is given more than once")
    refuse(["--workload", "M=1"], "workload 'M=1'")
    project.edit(project.space, "default: {block_size: 256, per_thread: 1}\n", "")
    refuse(["per_thread=4"], "no value for block_size\n  give each as name=value")


def test_devices_lists_recordings_and_names_one_that_is_damaged(project, tune) -> None:
    done = tune("devices")
    assert done.exit_code == 0
    # Whether there is OpenCL is this machine's affair.
    listed = [line for line in done.stdout.splitlines() if not line.startswith("opencl:")]
    assert listed == [
        "no NVIDIA GPU found",
        "recorded:kernels/recordings/nvidia-h200/scale.json.xz  scale on NVIDIA H200, 2026-11-20",
        "command:PROGRAM  a program of yours compiles and times (docs/evaluators.md)",
    ]
    (path,) = (project.root / "kernels/recordings").glob("*/*")
    path.write_bytes(b"not a recording")
    (listed,) = json.loads(tune("devices", "--json").stdout)["recordings"]
    assert listed["problem"].startswith("is not a recording")
