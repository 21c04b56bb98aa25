"""`tune export --format sglang-pr` and `vllm-pr`: files that the projects' own code reads."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import kept
import numpy as np
import pytest
from dispatch_sample import COMPARISONS, write_project, write_session
from engine_wheels import SGLANG, VLLM
from operator_sessions import SPACES, choices, write_operator_session
from slow import mostly_slow

from tuner.analysis.sass import disassemble
from tuner.device.reference import load_reference
from tuner.extensions.export.pull_request.kernel import MOST_LINES, cpp, list_code
from tuner.extensions.export.pull_request.request import PROJECTS
from tuner.model.errors import InputError
from tuner.model.expressions import Expression

ROOT = Path(__file__).parents[4]
SUPPORT = ROOT / "tests/support"
# An operator, and whose its largest workload is: there its default config is made to win.
MODELS = {
    "silu_and_mul": "llama-3-8b",
    "rmsnorm": "llama-3-70b",
    "fused_add_rmsnorm": "llama-3-70b",
    "moe_sum_reduce": "deepseek-v3",
}
ENGINES = {"sglang": SGLANG, "vllm": VLLM}
Export = Callable[..., Path]


@pytest.fixture
def export(tune: Callable[..., Any], tmp_path: Path) -> Export:
    """Export a session of an operator, and return the folder."""

    def run(name: str, form: str = "sglang-pr", choice: int = 0) -> Path:
        session = write_operator_session(tmp_path / f"s{choice}", name, choices(name)[choice])
        to = tmp_path / f"{form}{choice}"
        result = tune("export", session, "--to", to, "--format", form, "--model", MODELS[name])
        assert result.exit_code == 0, result.output
        return to

    return run


def refusal(tune: Callable[..., Any], session: Path, to: Path, *words: str) -> str:
    """Give the one error of an export that writes nothing."""
    result = tune("export", session, "--to", to, *words)
    assert result.exit_code == 2, result.output
    assert not to.exists()
    return str(result.output).replace("\n", " ")


def kernel_file(folder: Path) -> Path:
    (found,) = (*folder.rglob("*.cuh"), *folder.glob("vllm/**/*.cu"))
    return found


@pytest.mark.parametrize("name", mostly_slow(MODELS))
def test_sglangs_files_lie_where_its_release_has_them_and_pass_its_formatters(
    name: str, export: Export
) -> None:
    folder = export(name)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    stem = kernel_file(folder).stem
    kinds = ("jit/csrc/*/{}.cuh", "ops/*/{}.py", "ops/*/test_{}.py", "benchmark/*/bench_{}.py")
    for kind in kinds:
        (found,) = folder.glob(f"**/kernels/{kind.format(stem)}")
        files.remove(found.relative_to(folder).as_posix())
    assert files == {"EVIDENCE.md", "measured.cu", "dispatch.json"}
    # Their pre-commit config is in no wheel: the defaults of Black and isort, by ruff.
    own = 'lint.isort.known-first-party=["sglang", "vllm"]'
    check = ("check", "--select=E,F,W,I,B", "--line-length=88", "--config", own)
    for words in (("format", "--check", "--line-length=88"), check):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", words[0], "--isolated", *words[1:], str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("form", PROJECTS)
def test_a_reviewer_reads_a_short_kernel_and_the_evidence(form: str, export: Export) -> None:
    folder = export("rmsnorm", form)
    text, page = kernel_file(folder).read_text(), (folder / "EVIDENCE.md").read_text()
    kernel = text.partition(f"namespace {kernel_file(folder).stem} {{")[2].partition("\nstruct L")[
        0
    ]
    assert kernel.count("\n") <= MOST_LINES
    assert "if constexpr" not in kernel
    assert "// A pointer to use after the wait" in kernel
    assert ("device::PDLWaitPrimary<true>()" in kernel) == (form == "sglang-pr")
    measured = (folder / "measured.cu").read_bytes()
    assert len(measured.splitlines()) > 2 * kernel.count("\n")
    assert hashlib.sha256(measured).hexdigest() in page
    assert hashlib.sha256(measured).hexdigest() in text
    assert hashlib.sha256(text.encode()).hexdigest() in page
    row = next(line for line in page.splitlines() if line.startswith("| 8192 |"))
    assert "| 2.000 | 1.999 to 2.001 |" in row
    assert "| 1024 | not compared |" in page
    assert "NVIDIA H200" in page
    assert "0.004 |ref|" in page


@pytest.mark.parametrize(
    ("name", "choice"),
    mostly_slow(
        (name, n)
        for name in MODELS
        for n, chosen in enumerate(choices(name))
        # SGLang's plugin has nothing to replace with it.
        if chosen.get("ROUNDED") != "true"
    ),
)
def test_its_formula_in_pytorch_is_our_reference(name: str, choice: int, export: Export) -> None:
    torch = pytest.importorskip("torch")
    (path,) = export(name, choice=choice).glob("test/**/test_*.py")
    tree = ast.parse(path.read_text())
    (native,) = [one for one in tree.body if getattr(one, "name", "") == "native"]
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(compile(ast.Module([native], []), "native", "exec"), names)  # noqa: S102
    rows = (5, 3, 64) if name == "moe_sum_reduce" else (5, 64)
    shapes: dict[str, tuple[int, ...]] = {one.arg: rows for one in native.args.args}
    shapes["w"] = (64,)
    rng = np.random.default_rng(0)
    given = [one.arg for one in native.args.args if one.arg not in ("eps", "scale", "dtype")]
    inputs = {one: rng.standard_normal(shapes[one]) for one in given}
    found = names["native"](*map(torch.from_numpy, inputs.values()), dtype=torch.float64)
    axes = {"T": 5, "D": 32, "H": 64, "K": 3}
    reference = load_reference(ROOT / f"kernels/sglang/{name}.py")
    expected = reference.compute(np, inputs, axes, **choices(name)[choice])
    for ours, (output, theirs) in zip(found, expected.items(), strict=True):
        # Our reference gives the new residual as it is kept.
        kept_as = ours.to(torch.bfloat16).double() if output == "residual" else ours
        np.testing.assert_allclose(kept_as.numpy(), theirs, rtol=1e-12)


def in_the_engine(engine: str, folder: Path) -> dict[str, Any]:
    """Import the files in the engine's tree, and read what its own code makes of them."""
    pytest.importorskip("torch")
    found = ENGINES[engine]
    path = [str(SUPPORT), str(ROOT), str(found.packages()), str(found.wheel())]
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "pull_requests.py"), engine, str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.slow
def test_sglangs_parser_registry_and_benchmarks_take_the_files(export: Export) -> None:
    said = in_the_engine("sglang", export("fused_add_rmsnorm"))
    assert said == {
        "suite": "base-b-kernel-unit-test-1-gpu-large",
        "runs_by_itself": True,
        "seconds": 30.0,
        "loads": True,
        "backend": True,
        "columns": ["tuned", "production", "torch.compile"],
        "rows": said["rows"],
        "proved": said["proved"],
    }
    ((first, last),) = said["proved"]
    assert 1024 < first < last == 8192, "halfway to the next one, in logarithms"
    assert 8192 in said["rows"]


@pytest.mark.slow
def test_vllm_traces_the_kernels_dispatch_and_compiles_nothing_for_that(export: Export) -> None:
    said = in_the_engine("vllm", export("silu_and_mul", "vllm-pr"))
    assert (said["key"], said["traced"], said["compiled"]) == (True, True, [])


@pytest.mark.parametrize(
    ("name", "form"),
    mostly_slow(
        ((name, form) for name in MODELS for form in PROJECTS),
        [],
        [("rmsnorm", "sglang-pr"), ("silu_and_mul", "vllm-pr")],
    ),
)
def test_it_compiles_with_the_engines_headers_to_the_code_that_was_measured(
    name: str, form: str, export: Export, tmp_path: Path, with_nvcc: Mapping[str, str]
) -> None:
    if (name, form) == ("moe_sum_reduce", "vllm-pr"):
        pytest.skip("vLLM's plugin has nothing to compare it with")
    folder = export(name, form)
    engine = ENGINES[form.partition("-")[0]]
    build = tmp_path / "build"
    build.mkdir()
    shutil.copy(kernel_file(folder), build / "kernel.cuh")
    shutil.copy(folder / "measured.cu", build / "measured.cu")
    run = f"TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, ({kernel_file(folder).stem}::Launcher::run));\n"
    (build / "unit.cu").write_text(f'#include "kernel.cuh"\n{run * (form == "sglang-pr")}')
    headers = [f"-I{engine.packages() / 'tvm_ffi/include'}"]
    if form == "sglang-pr":
        headers.append(f"-I{engine.wheel() / 'sglang/kernels/jit/include'}")
    macros = [f"-D{n}={value}" for n, value in choices(name)[0].items()]
    options = "-std=c++20 -O3 -DSGL_CUDA_ARCH=900 -gencode=arch=compute_90a,code=sm_90a -cubin"
    for unit, more in (("unit", headers), ("measured", macros)):
        script = shlex.join(["nvcc", *options.split(), *more, "-o", f"{unit}.cubin", f"{unit}.cu"])
        assert "error" not in kept.build(["sh", "-c", script], build, environment=with_nvcc)
    ours, measured = ((build / f"{one}.cubin").read_bytes() for one in ("unit", "measured"))
    assert disassemble(ours).count("STO_CUDA_ENTRY") == 1
    assert list_code(ours) == list_code(measured)


def test_what_it_was_not_made_for_is_one_error_with_a_remedy(
    tune: Callable[..., Any], tmp_path: Path
) -> None:
    session, to = tmp_path / "s", tmp_path / "out"
    write_operator_session(session, "silu_and_mul", choices("silu_and_mul")[0])
    form = ("--format", "sglang-pr")
    several = refusal(tune, session, to, *form)
    assert "the tuned shapes of silu_and_mul are of several models: D=768; D=2048" in several
    assert "name one with --model" in several
    unknown = refusal(tune, session, to, *form, "--model", "llama-9")
    assert "no model is called 'llama-9' here" in unknown
    assert "one of llama-2-7b, llama-3-8b" in unknown
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"text_config": {"intermediate_size": 999}}))
    other = refusal(tune, session, to, *form, "--model", str(config))
    assert "no tuned shape is one of" in other
    assert "D=14336" in other
    release = refusal(tune, session, to, *form, "--release", "0.9.9")
    assert "the layout of SGLang 0.9.9 is not known here" in release
    assert "--release 0.5.17" in release
    nothing = refusal(tune, session, to, *form, "--model", "qwen3-8b")
    assert "nothing is proved faster than what serves silu_and_mul" in nothing
    config.write_text(json.dumps({"text_config": {"intermediate_size": 14336}}))
    assert tune("export", session, "--to", to, *form, "--model", config).exit_code == 0


def test_an_operator_that_the_engine_calls_nowhere_is_refused(
    tune: Callable[..., Any], tmp_path: Path
) -> None:
    to = tmp_path / "out"
    blend = write_session(tmp_path / "b", write_project(tmp_path / "project"), COMPARISONS)
    said = refusal(tune, blend, to, "--format", "sglang-pr")
    assert "nobody has said where blend belongs in SGLang" in said
    assert "silu_and_mul, rmsnorm" in said
    session = tmp_path / "s"
    write_operator_session(session, "moe_sum_reduce", {})
    said = refusal(tune, session, to, "--format", "vllm-pr", "--model", "deepseek-v3")
    assert "vLLM has nothing to compare moe_sum_reduce with" in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--format", "torch", "--model", "llama-3-8b"), "--model and --release are for --format"),
        (("--format", "vllm-pr", "--max-variants", "2"), "for one session, and has one kernel"),
    ],
)
def test_options_of_something_else_are_refused(
    tune: Callable[..., Any], tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    write_operator_session(tmp_path / "s", "rmsnorm", choices("rmsnorm")[0])
    assert told in refusal(tune, tmp_path / "s", tmp_path / "out", *words)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("T", "T"),
        ("ceil_div(T * 8, 256)", "((T * 8) + 255) / 256"),
        ("multiprocessors * 1 if False else min(T, 7)", "(T < 7 ? T : 7)"),
        ("T if T > 4 and multiprocessors == 132 else 2", None),
    ],
)
def test_a_grid_is_plain_cpp(text: str, written: str | None) -> None:
    expected = "((T > 4) && (multiprocessors == 132)) ? T : 2" if written is None else written
    assert cpp(Expression.parse(text)) == expected


def test_what_has_no_plain_form_is_refused() -> None:
    with pytest.raises(InputError, match="has no plain form"):
        cpp(Expression.parse("T ** 2"))


def test_every_operator_with_facts_is_one_of_ours() -> None:
    assert {path.stem for path in SPACES.glob("*.yaml")} >= set(MODELS)
