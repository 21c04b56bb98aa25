"""The file of a campaign: the jobs that it comes to, and every mistake with its line."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from tuner.extensions.scale.campaign import file as campaign_file
from tuner.extensions.scale.campaign import jobs
from tuner.extensions.scale.campaign.file import (
    CampaignModel,
    CampaignPlan,
    JobModel,
    read_campaign,
)
from tuner.extensions.scale.campaign.jobs import TUNE
from tuner.model.errors import InputError
from tuner.session.database import ENVIRONMENT as TUNE_STORE

ROOT = Path(__file__).parents[5]
SCALE = ROOT / "tests/end_to_end/data/scale"
RECORDING = Path("kernels/recordings/nvidia-h200/scale.json.xz")
MANY = f"{{{', '.join(f'A{n}: [a, b, c, d]' for n in range(40))}}}"
SILU = ROOT / "kernels/sglang/silu_and_mul.cu"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one small kernel and a recording of it, on a machine with two GPUs."""
    monkeypatch.setattr(campaign_file, "gpu_count", lambda: 2)
    monkeypatch.delenv(TUNE_STORE, raising=False)
    monkeypatch.chdir(shutil.copytree(SCALE, tmp_path / "project"))
    RECORDING.parent.mkdir(parents=True)
    RECORDING.write_text("made up")
    return Path()


def plan_of(text: str) -> CampaignPlan:
    Path("c.yaml").write_text(f"version: 1\n{text}", encoding="utf-8")
    return read_campaign(Path("c.yaml"))


def refused(text: str) -> str:
    with pytest.raises(InputError) as found:
        plan_of(text)
    assert found.value.exit_code == 2
    return str(found.value)


def compilers_of(text: str) -> set[str]:
    return {job.start[job.start.index("--jobs") + 1] for job in plan_of(text).jobs}


def test_jobs_share_the_compilers_with_those_that_run_at_the_same_time(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)))
    one, two = "{kernel: kernels/scale.cu}", "{kernel: kernels/scale.cu, name: other}"
    assert compilers_of(f"jobs: [{one}]") == {"12"}
    assert compilers_of(f"jobs: [{one}, {two}]") == {"6"}
    assert compilers_of(f"gpus: [1]\njobs: [{one}, {two}]") == {"12"}
    third = "{kernel: kernels/scale.cu, name: third, device: host}"
    assert compilers_of(f"parallel: 5\njobs: [{one}, {two}, {third}]") == {"4"}


def test_a_kernel_alone_may_be_tuned_on_every_gpu(project: Path) -> None:
    plan = plan_of("jobs: [{kernel: kernels/scale.cu}]")
    (job,) = plan.jobs
    compilers = str(len(os.sched_getaffinity(0)))
    session = "sessions/c/scale"
    words = ("kernels/scale.cu", "--session", session, "--device", "cuda", "--jobs", compilers)
    assert job.start == (*TUNE, *words)
    assert job.resume == (*TUNE, words[0], "--resume", session, "--jobs", compilers)
    assert (job.name, job.needs_gpu, job.session) == ("scale", True, Path(session))
    assert (plan.gpus, plan.parallel, plan.time_s) == ((0, 1), 1, None)


def test_a_job_says_more_than_the_defaults_and_every_setting_is_an_option(project: Path) -> None:
    plan = plan_of(
        "folder: out\ngpus: [1]\ntime: 1h30m\nparallel: 3\n"
        "defaults: {trials: 9, time: 20m, device: recorded, prune: false}\n"
        "jobs:\n  - {kernel: kernels/scale.cu, trials: 5, enough: 0.001, seed: 3, searcher: random,"
        " workloads: [{N: 77}, {N: 78}]}\n"
    )
    (job,) = plan.jobs
    assert (plan.time_s, plan.parallel, plan.gpus, job.needs_gpu) == (5400.0, 3, (), False)
    text = " ".join(job.start)
    assert " --session out/scale --device recorded --searcher random --trials 5 " in text
    assert " --enough 0.001 --no-prune --seed 3 --time 1200.0s " in text
    assert " --workload N=77 --workload N=78 " in text


def test_where_it_goes_on_it_names_the_search_space_whose_python_runs(project: Path) -> None:
    space = shutil.copy("search_spaces/scale.yaml", "search_spaces/mine.yaml")
    (job,) = plan_of(f"jobs: [{{kernel: kernels/scale.cu, space: {space}, device: host}}]").jobs
    assert job.resume[3:8:2] == ("kernels/scale.cu", "sessions/c/scale", space)


def test_where_a_run_keeps_things_is_said_again_when_it_goes_on(project: Path) -> None:
    text = "defaults: {store: %s}\njobs: [{kernel: kernels/scale.cu, %s}]"
    server = "postgresql://me@host/runs"
    (job,) = plan_of(text % (server, "copy_session: true")).jobs
    assert job.start[-5:-2] == job.resume[-5:-2] == ("--store", server, "--copy-session")
    text %= "past.db", "%s"
    assert plan_of(text % "").jobs[0].start[-4:-2] == ("--store", "past.db")
    (none,) = plan_of(text % "store: none").jobs
    assert none.resume[-4:-2] == ("--store", "none")
    assert none.key == job.key


def test_on_a_cluster_no_gpu_is_needed_here(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign_file, "gpu_count", lambda: pytest.fail("asked for GPUs"))
    text = "defaults: {%s}\nparallel: 8\njobs: [{kernel: kernels/scale.cu}]"
    plan = plan_of(text % "cluster: 'tcp://localhost:8786', gpu_model: H200")
    (job,) = plan.jobs
    words = ("--cluster", "tcp://localhost:8786", "--gpu-model", "H200")
    assert job.start[-6:-2] == job.resume[-6:-2] == words
    assert (job.start[7], job.needs_gpu, plan.parallel) == ("cuda", False, 8)
    assert job.cluster == "tcp://localhost:8786"
    monkeypatch.setattr(campaign_file, "gpu_count", lambda: 0)
    assert "`tls_ca` needs `cluster`" in refused(text % "tls_ca: ca")


def test_the_model_of_gpu_in_the_defaults_is_for_jobs_on_gpus(project: Path) -> None:
    pytest.importorskip("distributed")
    text = (
        "defaults: {cluster: 'tcp://localhost:1', gpu_model: H200%s}\n"
        "jobs:\n  - {kernel: kernels/scale.cu, name: one}\n  - {kernel: kernels/scale.cu, %s}"
    )
    one, other = plan_of(text % ("", "device: host")).jobs
    assert "--gpu-model" in one.start
    assert "--gpu-model" not in other.start
    assert refused(text % (", device: host", "")).startswith("c.yaml:2: --gpu-model H200 chooses")
    both = refused(text % ("", "device: host, gpu_model: H200"))
    assert both.startswith("c.yaml:5: --gpu-model H200 chooses")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("cluster: nonsense", "'nonsense' is not the address of a Dask"),
        ("cluster: 'tcp://s:1'", "whoever reaches it could run code on every host"),
        ("cluster: 'tcp://s:1', device: recorded", "a device of one machine"),
        ("cluster: 'tcp://s:1', device: host, gpu_model: H200", "--gpu-model H200 chooses among"),
        ("cluster: 'tcp://s:1', tls_key: k", "are needed together"),
        ("cluster: 'tls://s:1', tls_ca: a, tls_cert: b", "no such file"),
        ("cluster: 'tls://s:1'", "tls://s:1 needs certificates"),
    ],
)
def test_a_cluster_that_cannot_be_meant_is_told_before_anything_starts(
    project: Path, more: str, said: str
) -> None:
    pytest.importorskip("distributed")
    found = refused(f"jobs:\n  - {{kernel: kernels/scale.cu, {more}}}")
    assert found.startswith("c.yaml:3: ")
    assert said in found


def test_certificates_and_an_address_without_encryption_are_told_before_anything_starts(
    project: Path,
) -> None:
    pytest.importorskip("distributed")
    from certificates import Authority

    authority = Authority(Path.cwd())
    certificate, key = authority.sign("one")
    files = f"tls_ca: {authority.certificate}, tls_cert: {certificate}, tls_key: {key}"
    text = "jobs: [{kernel: kernels/scale.cu, cluster: '%s://s:1', %s}]"
    assert "tcp://s:1 is without encryption" in refused(text % ("tcp", files))
    assert plan_of(text % ("tls", files)).jobs[0].cluster == "tls://s:1"


@pytest.mark.parametrize(
    ("file", "device", "said"),
    [
        ("gemm_f32.cl", "host", "--device host does not run OpenCL"),
        ("gemm_f32.cu", "opencl", "--device opencl runs OpenCL, and this is CUDA"),
        ("gemm_f32.cl", "'hip:1'", "--device hip runs HIP, and this is OpenCL"),
        ("gemm_f32.hip", "cuda", "a kernel in HIP does not run on NVIDIA's GPUs"),
        ("gemm_f32.hip", "hip", "no AMD GPU was found"),
        ("gemm_f32.cu", "'hip:0'", "no AMD GPU was found"),
        ("gemm_f32.hip", "auto", "no recording of this kernel"),
    ],
)
def test_a_device_that_cannot_run_a_kernel_is_told_before_anything_starts(
    project: Path, monkeypatch: pytest.MonkeyPatch, file: str, device: str, said: str
) -> None:
    monkeypatch.setattr(jobs, "AMD_DRIVER", Path("no driver"))
    kernel = ROOT / "kernels/portable" / file
    assert said in refused(f"jobs: [{{kernel: {kernel}, device: {device}}}]")


def test_a_kernel_in_hip_runs_where_the_driver_of_an_amd_gpu_is(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "AMD_DRIVER", Path("driver"))
    Path("driver").write_text("")
    kernel = ROOT / "kernels/portable/gemm_f32.hip"
    for device in ("auto", "hip", "'hip:1'"):
        (job,) = plan_of(f"jobs: [{{kernel: {kernel}, device: {device}}}]").jobs
        assert not job.needs_gpu


def test_a_kernel_without_a_recording_is_told_where_there_is_no_gpu(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign_file, "gpu_count", lambda: 0)
    RECORDING.unlink()
    assert "no recording of this kernel" in refused("jobs: [{kernel: kernels/scale.cu}]")


@pytest.mark.parametrize(("asked", "word"), [("auto", "auto"), ("'opencl:1'", "opencl:1")])
def test_other_languages_than_cuda_choose_their_own_device(
    project: Path, monkeypatch: pytest.MonkeyPatch, asked: str, word: str
) -> None:
    monkeypatch.setattr(campaign_file, "gpu_count", lambda: 0)
    kernel = next((ROOT / "kernels/portable").glob("*.cl"))
    (job,) = plan_of(f"jobs: [{{kernel: {kernel}, device: {asked}}}]").jobs
    assert job.start[job.start.index("--device") + 1] == word
    assert not job.needs_gpu


def test_lists_of_choices_make_a_job_for_each_combination(project: Path) -> None:
    plan = plan_of(
        f"jobs:\n  - {{kernel: {SILU}, device: recorded, operator: {{ACTIVATION: [silu, gelu]}}}}"
    )
    assert [job.name for job in plan.jobs] == ["silu_and_mul-silu", "silu_and_mul-gelu"]
    assert plan.jobs[1].start[-4:-2] == ("--operator", "ACTIVATION=gelu")
    assert plan.jobs[0].key != plan.jobs[1].key


def test_a_pattern_makes_a_job_for_each_kernel(project: Path) -> None:
    (project / "jobs").mkdir()
    path = project / "jobs/all.yaml"
    path.write_text("version: 1\njobs: [{kernel: ../kernels/*.cu, name: night}]")
    plan = read_campaign(path)
    assert [job.name for job in plan.jobs] == ["night"]
    shutil.copy("kernels/scale.cu", "kernels/other.cu")
    shutil.copy("kernels/scale.py", "kernels/other.py")
    text = Path("search_spaces/scale.yaml").read_text().replace("kernels/scale", "kernels/other")
    Path("search_spaces/other.yaml").write_text(text)
    assert [job.name for job in read_campaign(path).jobs] == ["night-other", "night-scale"]


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("kernel: /**", "'/**' looks through all of /"),
        ("kernel: /*/*/*.cu", "looks through all of /"),
        ("kernel: /proc/**/*.cu", "looks through all of /proc"),
        ("kernel: ../../../../../../../../../../sys/**/*.cu", "looks through all of /sys"),
        (f"kernel: kernels/scale.cu, operator: {MANY}", "jobs up to here, over 1,000"),
    ],
)
def test_what_would_never_end_is_told_before_it_begins(project: Path, job: str, said: str) -> None:
    assert said in refused(f"jobs:\n  - {{{job}}}")


def test_a_pattern_looks_through_no_more_than_it_says(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign_file, "_MOST_ENTRIES", 3)
    assert "looks through all of" in refused('jobs: [{kernel: "**/*.cu"}]')


def test_kernels_of_one_name_that_a_pattern_matches_are_told_with_what_helps(project: Path) -> None:
    Path("kernels/more").mkdir()
    for name in ("scale.cu", "scale.py"):
        shutil.copy(f"kernels/{name}", f"kernels/more/{name}")
    assert "c.yaml:2: it comes to two jobs that are called 'scale'\n  list kernels/" in refused(
        "jobs: [{kernel: 'kernels/**/*.cu'}]"
    )


def test_a_recording_has_its_report_written_and_its_own_options(project: Path) -> None:
    (job,) = plan_of("jobs: [{kernel: kernels/scale.cu, record: true, trials: 2}]").jobs
    assert job.start[3:5] == ("record", "kernels/scale.cu")
    assert job.resume[3:6] == ("record", "kernels/scale.cu", "--resume")
    assert job.finish == ((*TUNE, "report", "sessions/c/scale"),)
    with_defaults = "defaults: {seed: 1}\njobs: [{kernel: kernels/scale.cu, record: true}]"
    assert "--seed" not in plan_of(with_defaults).jobs[0].start
    for line, text in (
        (2, "defaults: {record: true, seed: 1}\njobs: [{kernel: kernels/scale.cu}]"),
        (3, "defaults: {trials: 3}\njobs: [{kernel: kernels/scale.cu, record: true, seed: 1}]"),
    ):
        assert refused(text).startswith(f"c.yaml:{line}: `seed` is not for a recording")


def test_jobs_with_more_trials_cost_more_unless_the_time_may_not_do_for_all(project: Path) -> None:
    jobs = (
        "jobs:\n  - {kernel: kernels/scale.cu}\n"
        "  - {kernel: kernels/scale.cu, name: few, trials: 2, workloads: [{N: 5}]}\n"
    )
    assert [job.cost for job in plan_of(jobs).jobs] == [300, 2]
    assert [job.cost for job in plan_of(f"time: 8h\n{jobs}").jobs] == [0, 0]


@pytest.mark.parametrize("name", ["kernels/scale.cu", "kernels/scale.py", "templates/scale.cu.j2"])
def test_a_changed_file_changes_the_key(project: Path, name: str) -> None:
    text = "jobs: [{kernel: kernels/scale.cu}]"
    before = plan_of(text).jobs[0].key
    assert plan_of(text).jobs[0].key == before
    path = project / name
    path.write_text(path.read_text() + "\n")
    assert plan_of(text).jobs[0].key != before


def test_a_changed_setting_changes_the_key(project: Path) -> None:
    keys = {
        plan_of(f"jobs: [{{kernel: kernels/scale.cu, {more}}}]").jobs[0].key
        for more in ("", "trials: 3", "seed: 1", "workloads: [{N: 5}]", "device: host")
    }
    assert len(keys) == 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("jobs: []", "c.yaml:2: `jobs` is empty"),
        ("jobs: [{kernel: a.cu}]\nparalel: 2", "c.yaml:3: unknown key `paralel`"),
        ("jobs: [{kernel: a.cu}]\nparalel: 2", "did you mean `parallel`?"),
        ("jobs: [{kernl: a.cu}]", "unknown key `kernl` in `jobs[0]`\n  did you mean `kernel`?"),
        ("jobs: [{name: x}]", "the key `kernel` is missing in `jobs[0]`"),
        ("jobs: [{kernel: a.cu}]\ntime: 8", "`time` is the number 8"),
        ("jobs: [{kernel: a.cu}]\ntime: soon", "`time` is the text 'soon'\n  needed: a time"),
        ("jobs: [{kernel: a.cu}]\ngpus: some", "`gpus` is the text 'some'\n  needed: all, or"),
        ("jobs: [{kernel: kernels/scale.cu}]\ngpus: [1, 0, 1]", "c.yaml:3: `gpus` names 1 twice"),
        ("jobs: [{kernel: a.cu}]\ngpus: []", "`gpus` is empty\n  needed: all, or"),
        ("jobs: [{kernel: a.cu}]\ngpus:", "c.yaml:3: `gpus` is empty\n  needed: all, or"),
        ("jobs: [{kernel: a.cu}]\ngpus: -1", "c.yaml:3: `gpus` is the number -1\n  needed: all"),
        ("gpus: [0, -1]\njobs: [{kernel: a.cu}]", "`gpus[1]` is the number -1\n  needed: all, or"),
        ("gpus:\n  - 0\n  - -1\njobs: [{kernel: a.cu}]", "c.yaml:4: `gpus[1]` is the number -1"),
        ("gpus: ['0']\njobs: [{kernel: a.cu}]", "`gpus[0]` is the text '0'\n  needed: all, or"),
        ("gpus: [true]\njobs: [{kernel: a.cu}]", "`gpus[0]` is the boolean true\n  needed: all"),
        ("jobs: [{kernel: 'kernels/**.cu'}]", "c.yaml:2: "),
        ("jobs: [{kernel: a.cu, device: 'hip:x'}]", "`jobs[0].device` is the text 'hip:x'"),
        ("jobs: [{kernel: a.cu, device: 'cuda:1'}]", "`jobs[0].device` is the text 'cuda:1'"),
        ("jobs: [{kernel: a.cu, operator: {A: []}}]", "`jobs[0].operator.A` is empty"),
        ("jobs: [{kernel: a.cu, agent: files}]", "needed: auto, openai or literal"),
        ("jobs: [{kernel: a.cu}]", "c.yaml:2: no such kernel file: a.cu"),
        ("jobs: [{kernel: 'a*.cu'}]", "c.yaml:2: no file matches 'a*.cu'"),
        ("gpus: [0, 5]\njobs: [{kernel: kernels/scale.cu}]", "c.yaml:2: there is no GPU 5\n"),
        ("jobs: [{kernel: kernels/scale.cu, operator: {ACT: gelu}}]",
         "scale has no operator choice named 'ACT'\n  choices: it has none"),
        ("jobs:\n  - {kernel: kernels/scale.cu, workloads: [{M: 5}]}",
         "c.yaml:3: workload 'M=5': no axis is named 'M'"),
        ("jobs:\n  - {kernel: kernels/scale.cu}\n  - {kernel: kernels/scale.cu, trials: 3}",
         "c.yaml:4: two jobs are called 'scale': line 3 has it too\n  give one of them a `name`"),
        (f"jobs: [{{kernel: {SILU}, device: host, operator: {{ACTIVATION: [silu, silu]}}}}]",
         "it comes to two jobs that are called 'silu_and_mul-silu'\n  list each choice once"),
        ("jobs: [{kernel: kernels/scale.cu, name: a/b}]", "'a/b' is no name for a job"),
        (f"jobs: [{{kernel: kernels/scale.cu, name: {'a' * 201}}}]", "is no name for a job"),
        ("jobs: [{kernel: kernels/scale.cu, name: index.html}]", "the campaign's own"),
        ("jobs: [{kernel: kernels/scale.cu, name: other.log}]", "give the job another `name`"),
        ("jobs: [{kernel: kernels/scale.cu, device: 'recorded:x'}]", "no such recording"),
        ("jobs: [{kernel: kernels/scale.cu, device: host, objective: energy}]", "no energy meter"),
        (
            "defaults: {record: true}\n"
            "jobs:\n  - {kernel: kernels/scale.cu}\n  - {kernel: kernels/scale.cu, name: b}",
            "c.yaml:5: two jobs write the recording of scale.cu\n  record a kernel once",
        ),
        ("jobs: [{kernel: kernels/scale.cu, record: true, device: host}]", "cannot be recorded"),
        ("defaults: {device: recorded}\njobs: [{kernel: kernels/scale.cu, record: true}]",
         "c.yaml:3: --device recorded cannot be recorded"),
        ("jobs: [{kernel: kernels/scale.cu, store: 'mysql://x'}]", "no database 'mysql'"),
        ("jobs: [{kernel: kernels/scale.cu, copy_session: true}]", "sessions are copied to serv"),
        ("jobs: [{kernel: kernels/scale.cu, model: m, agent: literal}]", "--model is for"),
        ("jobs: [{kernel: kernels/scale.cu, searcher: guess}]", "'guess' is no searcher"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line_and_a_remedy(project: Path, text: str, said: str) -> None:
    found = refused(text)
    assert said in found
    assert found.startswith("c.yaml:")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("searcher: guess", "'guess' is no searcher"),
        ("device: 'recorded:x'", "x: there is no such recording"),
        ("device: host, objective: energy", "no energy meter"),
        ("model: m, agent: literal", "--model is for"),
        ("store: 'mysql://x'", "no database 'mysql'"),
        ("tls_key: key", "`tls_key` needs `cluster`"),
        ("cluster: nonsense", "'nonsense' is not the address of a Dask"),
        ("cluster: 'tcp://s:1'", "tcp://s:1 is without encryption"),
    ],
)
def test_what_is_wrong_in_the_defaults_is_told_once_and_there(
    project: Path, settings: str, said: str
) -> None:
    if "cluster:" in settings:
        pytest.importorskip("distributed")
    names = "\n".join(f"  - {{kernel: kernels/scale.cu, name: j{i}}}" for i in range(50))
    found = refused(f"jobs:\n{names}\ndefaults: {{{settings}}}")
    assert said in found
    assert found.startswith("c.yaml:53: ")


def test_what_is_wrong_in_a_job_of_its_own_is_told_there(project: Path) -> None:
    job = "  - kernel: kernels/scale.cu\n    searcher: guess"
    assert refused(f"defaults: {{searcher: random}}\njobs:\n{job}").startswith("c.yaml:5: 'guess'")


def test_all_mistakes_are_told_at_once(project: Path) -> None:
    said = refused(
        "gpus: [7]\njobs:\n  - {kernel: a.cu}\n  - {kernel: kernels/scale.cu, seed: 1}\n"
        "  - {kernel: kernels/scale.cu, workloads: [{M: 5}]}\n"
    )
    first, *others = [line for line in said.splitlines() if not line.startswith("  ")]
    assert first == "4 problems, nothing was started:"
    assert [line.split()[0] for line in others] == [
        "c.yaml:4:",
        "c.yaml:6:",
        "c.yaml:2:",
        "c.yaml:6:",
    ]
    assert not Path("sessions").exists()


def test_a_mistake_in_a_search_space_has_both_places(project: Path) -> None:
    space = project / "search_spaces/scale.yaml"
    space.write_text(space.read_text().replace("axes: [N]", "axs: [N]"))
    said = refused("jobs:\n  - {kernel: kernels/scale.cu}")
    assert said.startswith("c.yaml:3: ")
    assert "scale.yaml:7: unknown key `axs`" in said


def test_without_a_gpu_auto_is_the_recording_and_cuda_is_told(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign_file, "gpu_count", lambda: 0)
    (job,) = plan_of("jobs: [{kernel: kernels/scale.cu}]").jobs
    assert "recorded" in job.start
    said = refused("jobs: [{kernel: kernels/scale.cu, device: cuda}]")
    assert "no NVIDIA GPU was found" in said
    assert "device: recorded" in said


def test_a_gpu_that_is_named_is_not_replaced_by_a_recording(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign_file, "gpu_count", lambda: 0)
    said = refused("gpus: [0, 1]\njobs: [{kernel: kernels/scale.cu}]")
    assert said.startswith("c.yaml:2: no NVIDIA GPU was found\n")


def test_what_a_recording_answers_for_want_of_a_gpu_is_known(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "jobs: [{kernel: kernels/scale.cu}, {kernel: kernels/scale.cu, name: b, device: %s}]"
    assert plan_of(text % "recorded").recorded == ()
    monkeypatch.setattr(campaign_file, "gpu_count", lambda: 0)
    assert plan_of(text % "recorded").recorded == ("scale",)
    assert plan_of(text % "auto").recorded == ("scale", "b")


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "[1, 2]", "text"])
def test_a_file_without_keys_is_sent_to_the_page_of_campaigns(project: Path, text: str) -> None:
    Path("c.yaml").write_text(text)
    with pytest.raises(InputError, match=r"docs/campaigns\.md has a complete example"):
        read_campaign(Path("c.yaml"))


def test_a_file_that_is_not_there_is_told(project: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.yaml: no such file"):
        read_campaign(Path("gone.yaml"))


def test_the_example_of_the_page_is_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign_file, "gpu_count", lambda: 4)
    page = (ROOT / "docs/campaigns.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "nightly.yaml"
    path.write_text(example.replace("../kernels", f"{ROOT}/kernels"), encoding="utf-8")
    plan = read_campaign(path)
    assert [job.name for job in plan.jobs] == [
        "silu_and_mul-silu",
        "silu_and_mul-gelu",
        "topk",
        "moe_align_block_size",
        "moe_sum_reduce",
    ]
    assert plan.folder == tmp_path / "../sessions/nightly"
    assert (plan.gpus, plan.time_s) == ((0, 1, 2, 3), 8 * 3600.0)
    assert all("200" in job.start and "1200.0s" in job.start for job in plan.jobs[:2])


def test_the_page_names_every_key() -> None:
    page = (ROOT / "docs/campaigns.md").read_text(encoding="utf-8")
    for model in (CampaignModel, JobModel):
        for key in model.model_fields:
            assert f"`{key}`" in page or f"`{key}:" in page, key


@pytest.mark.parametrize("record", ["", ", record: true"])
def test_rows_whose_bits_are_kept_need_a_space_that_says_where_they_lie(
    project: Path, record: str
) -> None:
    text = f"jobs: [{{kernel: kernels/scale.cu, invariant: true{record}}}]"
    assert "--invariant: scale says of no output that it has rows" in refused(text)
    with Path("search_spaces/scale.yaml").open("a", encoding="utf-8") as space:
        space.write("rows: {N: [out]}\n")
    (job,) = plan_of(text).jobs
    assert "--invariant" in job.start
