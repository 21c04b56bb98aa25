"""`tune export --format torch`: packages of made-up sessions and of our own operators."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dispatch_sample import COMPARISONS, ONE, A, comparison, write_project, write_session
from operator_sessions import OPERATORS, SPACES, choices, write_operator_session
from slow import mostly_slow

from tuner.compiler.pool import NvrtcPool
from tuner.extensions.export.packages import export_package
from tuner.extensions.export.pytorch.package import OperatorFiles
from tuner.extensions.export.winners import winners_of
from tuner.model.kernel import Invariance, Workload
from tuner.space.load import load_definition

Tune = Callable[..., Any]


@pytest.fixture
def session(tmp_path: Path) -> Path:
    return write_session(tmp_path / "session", write_project(tmp_path / "project"), COMPARISONS)


@pytest.fixture
def imported(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Callable[[Path, str], Any]]:
    """Import a package from a folder, and forget it afterwards."""
    pytest.importorskip("torch")
    names: list[str] = []

    def load(folder: Path, package: str) -> Any:
        monkeypatch.syspath_prepend(folder)
        names.append(package)
        return import_module(package)

    yield load
    for name in [one for one in sys.modules if one.split(".")[0] in names]:
        del sys.modules[name]


def test_it_writes_a_package_and_says_how_to_install_it(
    tune: Tune, session: Path, tmp_path: Path
) -> None:
    to = tmp_path / "out"
    result = tune("export", session, "--to", to, "--format", "torch", "--package", "tuned_blend")
    assert result.exit_code == 0, result.output
    assert "blend: 2 variants for 3 of 3 tuned workloads; the fallback for others" in result.output
    assert f"pip install {to}, then `import tuned_blend`" in result.output.replace("\n", "")
    content = json.loads((to / "dispatch.json").read_text("utf-8"))
    written = {str(p.relative_to(to)) for p in to.rglob("*") if p.is_file()}
    assert set(content["files"]) == written - {"dispatch.json"}
    assert content["operators"]["blend"]["device"] == "NVIDIA H200"
    assert (to / "tuned_blend/cubins/blend_v1.cubin").read_bytes().startswith(b"\x7fELF")


def test_what_it_says_of_shapes_is_what_the_dispatch_says(
    tune: Tune, session: Path, tmp_path: Path, imported: Callable[[Path, str], Any]
) -> None:
    to = tmp_path / "out"
    assert (
        tune("export", session, "--to", to, "--format", "torch", "--package", "tuned_a").exit_code
        == 0
    )
    package = imported(to, "tuned_a")
    table, runtime = package.OPERATORS["blend"].table, sys.modules["tuned_a.runtime"]
    h200 = runtime.Numbers(132, 232448)
    winners = winners_of(session, None, None).dispatch.table
    for entry in winners.entries:
        axes = tuple(size for _, size in entry.workload.axes)
        found = runtime.serving(table, axes, h200)
        assert (found.number if found else 0) == winners.number(entry.kernel)
    assert runtime.serving(table, (64, 4095), h200) is None, "no block divides it"
    assert table.shapes(64, 4096) == ((64, 4096), (64, 4096))
    assert table.scratch_bytes(64, 4096) == (4 * 64 * 4,)
    assert table.scalars(64, 4096) == (64, 4096, 1e-6, True)
    assert table.read_axes((64, 4096), (64, 4096)) == (64, 4096)
    first, second = next(v for v in table.variants if v.number == 2).launches(2, 4096, h200), None
    assert [one is second for one in first] == [True, False], "the first is made for T > 4"


def test_arguments_may_have_names_that_mean_something_in_python(tune: Tune, tmp_path: Path) -> None:
    space = write_project(tmp_path / "project")
    text = space.read_text("utf-8").replace("name: x,", "name: in,")
    space.write_text(text.replace("name: out,", "name: type,").replace("{out:", "{type:"), "utf-8")
    session, to = write_session(tmp_path / "session", space, COMPARISONS), tmp_path / "out"
    result = tune("export", session, "--to", to, "--format", "torch")
    assert result.exit_code == 0, result.output
    table, package = (
        (to / "tuned_kernels" / name).read_text("utf-8")
        for name in ("blend_table.py", "__init__.py")
    )
    compile(table, "blend_table.py", "exec")
    compile(package, "__init__.py", "exec")
    assert "def blend(type, in_, *, eps=1e-06):" in package
    assert 'Array("in_", "bfloat16", "input")' in table
    # Of its own names a function hides none.
    assert "def quick(type_, in_, eps_):" in table


def test_an_axis_that_would_hide_the_package_s_own_code_is_one_error(
    tune: Tune, tmp_path: Path
) -> None:
    space = write_project(tmp_path / "project")
    space.write_text(re.sub(r"\bT\b", "gpu", space.read_text("utf-8")), "utf-8")
    one = Workload.of({"gpu": 1, "D": 4096})
    session = write_session(tmp_path / "session", space, (comparison(one, {A: 5.0}),))
    result = tune("export", session, "--to", tmp_path / "out", "--format", "torch")
    assert result.exit_code == 2
    assert "an axis is named gpu" in result.output
    assert not (tmp_path / "out").exists()


class NotingDriver:
    """Note the addresses and the scalar of each launch, and its stream."""

    def __init__(self) -> None:
        self.noted: list[tuple[Any, ...]] = []

    def load(self, cubin: bytes) -> int:
        return 1

    def kernel(self, library: int, symbol: str) -> int:
        return 1

    def set(self, *given: int) -> None:
        """Nothing is kept of attributes."""

    def launch(self, where: int, kernel: int, parameters: int, extra: None) -> int:
        out, x, _, _, _, eps, _ = (ctypes.c_void_p * 7).from_address(parameters)
        places = (ctypes.c_void_p.from_address(one).value for one in (out, x))
        self.noted.append((*places, ctypes.c_float.from_address(eps).value))
        return 0


def test_its_function_enqueues_usual_calls_itself_and_leaves_others_to_the_operator(
    tune: Tune,
    session: Path,
    tmp_path: Path,
    imported: Callable[[Path, str], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tune("export", session, "--to", tmp_path / "o", "--format", "torch", "--package", "tuned_q")
    package = imported(tmp_path / "o", "tuned_q")
    import torch
    from fake_gpu import FakeTensor, fake_gpu

    gpu, driver, operator = fake_gpu(monkeypatch), NotingDriver(), package.OPERATORS["blend"]
    for module in ("runtime", "blend_table"):
        monkeypatch.setattr(sys.modules[f"tuned_q.{module}"], "PLAIN", {FakeTensor})
    monkeypatch.setattr(operator, "_open_driver", lambda: driver)
    asked: list[tuple[Any, ...]] = []
    general = operator.enqueue
    monkeypatch.setattr(operator, "enqueue", lambda *one: asked.append(one) or general(*one))
    refused: list[Any] = []
    operator.fallback = lambda *given, **_: refused.append(given)

    def arrays(at: int = 4096, **changed: Any) -> tuple[FakeTensor, FakeTensor]:
        x = FakeTensor(64, 4096, **{"at": at + 256, **changed})
        return FakeTensor(64, 4096, dtype=torch.float32, at=at), x

    with torch.no_grad():
        for at, eps in ((4096, 1e-6), (8192, 0.5), (16384, 1e-6)):
            package.blend(*arrays(at), eps=eps)
        assert len(asked) == 1, "the first makes the plan"
        usual = [driver.noted[0], *driver.noted[-1:]]
        assert [one[:2] for one in usual] == [(4096, 4352), (16384, 16640)]
        assert {round(one[2], 9) for one in driver.noted} == {1e-6, 0.5}
        gpu.current = 1
        package.blend(*arrays())
        assert (gpu.entered, gpu.current) == ([0], 1), "its device is entered, and left"
        for changed in ({"at": 4100}, {"dtype": torch.float32}, {"device": 1}):
            package.blend(*arrays(**changed))
        strided = arrays()
        strided[1].contiguous = False
        package.blend(*strided)
    assert len(refused) == 4 and len(asked) == 5
    assert operator.calls[0] == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--package", "9x"), "'9x' is no name of a Python package"),
        (("--package", "class"), "'class' is no name of a Python package"),
        (("--package", "torch"), "a package named torch would hide the one that it is for"),
        (("SESSION",), "2 sessions are of blend"),
        (("SESSION", "--space", "SPACE"), "--space is for one session"),
    ],
)
def test_what_cannot_be_packed_is_one_error_and_writes_nothing(
    tune: Tune, session: Path, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    places = {"SESSION": session, "SPACE": tmp_path / "project/blend.yaml"}
    given = [places.get(word, word) for word in words]
    result = tune("export", session, *given, "--to", tmp_path / "out", "--format", "torch")
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "out").exists()


def test_no_pytorch_is_needed_to_write_a_package(session: Path, tmp_path: Path) -> None:
    forms = ("torch", "sglang", "vllm")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from tuner.cli import cli\n"
        f"for form in {forms!r}:\n"
        f"    words = ['export', {str(session)!r}, '--to', {str(tmp_path)!r} + '/' + form]\n"
        "    cli([*words, '--format', form], standalone_mode=False)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert all((tmp_path / form / "tuned_kernels/runtime.py").exists() for form in forms)


def test_it_says_how_the_hub_s_library_loads_it(tune: Tune, session: Path, tmp_path: Path) -> None:
    to = tmp_path / "out"
    result = tune("export", session, "--to", to, "--format", "kernels")
    assert result.exit_code == 0, result.output
    assert f"kernels.get_local_kernel(Path('{to}'))" in result.output.replace("\n", "")
    assert json.loads((to / "dispatch.json").read_text("utf-8"))["form"] == "kernels"


@pytest.mark.parametrize(
    ("to", "argument"), [("out", "./out"), ("a b/out", "'a b/out'"), ("./out", "./out")]
)
@pytest.mark.parametrize(
    ("form", "command"),
    [
        ("torch", "pip install {}"),
        ("sglang", "pip install {}"),
        ("vllm", "pip install {}"),
        ("flashinfer-trace", "flashinfer-bench run --local {}"),
    ],
)
def test_commands_name_the_folder_and_no_package_of_an_index(
    tune: Tune,
    session: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    command: str,
    to: str,
    argument: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = tune("export", session, "--to", to, "--format", form)
    assert result.exit_code == 0, result.output
    said = command.format(argument)
    assert said in result.output.replace("\n", "")
    readme = Path(to, "README.md").read_text("utf-8").replace("--no-deps ", "")
    assert f"{said}\n" in readme
    assert json.loads(Path(to, "dispatch.json").read_text("utf-8"))["form"] == form


@pytest.mark.parametrize(
    ("form", "otherwise"), [("torch", "fallback"), ("flashinfer-trace", "baseline")]
)
def test_where_nothing_is_faster_there_is_one_warning(
    tune: Tune, tmp_path: Path, form: str, otherwise: str
) -> None:
    project = write_project(tmp_path / "project")
    session = write_session(tmp_path / "session", project, (comparison(ONE, {A: 11.0}),))
    result = tune("export", session, "--to", tmp_path / "out", "--format", form)
    assert result.exit_code == 0, result.output
    assert f"0 variants for 0 of 3 tuned workloads; the {otherwise} for others" in result.output
    assert result.output.count("no variant is proved faster anywhere") == 1


def test_several_sessions_are_for_packages(tune: Tune, session: Path, tmp_path: Path) -> None:
    result = tune("export", session, session, "--to", tmp_path / "out")
    assert result.exit_code == 2
    assert "several sessions are for --to with another --format than cpp" in result.output


@pytest.mark.slow
def test_all_operators_are_one_package_that_pip_installs(
    tmp_path: Path, compiler: NvrtcPool
) -> None:
    pytest.importorskip("torch")
    sessions = [
        write_operator_session(tmp_path / name, name, choices(name)[0]) for name in OPERATORS
    ]
    to = tmp_path / "out"
    export_package([winners_of(one, None, None) for one in sessions], to, compiler, "tuned_all")
    place = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(place)]
    subprocess.run([*pip, str(to)], check=True, timeout=200)
    code = (
        "import tuned_all, torch\n"
        f"assert sorted(tuned_all.OPERATORS) == {OPERATORS!r}\n"
        "for name, one in tuned_all.OPERATORS.items():\n"
        "    assert hasattr(torch.ops.tuned_all, name)\n"
        "    for variant in one.table.variants:\n"
        "        assert (one.table.folder / variant.cubin).read_bytes()[:4] == b'\\x7fELF'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=place)


# Two launches, a choice, choices that go together, tensor maps.
SAMPLE = ("moe_align_block_size", "topk_softmax", "per_token_group_quant", "gemm_fp8")


@pytest.mark.parametrize("kernel", mostly_slow(OPERATORS, [], SAMPLE))
def test_every_choice_of_an_operator_is_packed(
    kernel: str, tmp_path: Path, compiler: NvrtcPool
) -> None:
    for number, chosen in enumerate(choices(kernel)):
        session = write_operator_session(tmp_path / f"s{number}", kernel, chosen)
        winners = winners_of(session, None, None)
        export_package([winners], tmp_path / f"o{number}", compiler, "tuned_one")
        text = (tmp_path / f"o{number}/tuned_one/{kernel}_table.py").read_text("utf-8")
        compile(text, kernel, "exec")


@pytest.mark.parametrize(
    ("outputs", "kept", "place"),
    [
        (("x", "residual"), True, 0),
        (("x",), True, None),  # of the other nothing is known
        (("x", "residual"), False, None),
    ],
)
def test_a_table_names_the_rows_on_which_no_bits_of_any_output_depend(
    outputs: tuple[str, ...], *, kept: bool, place: int | None
) -> None:
    spec = load_definition(SPACES / "fused_add_rmsnorm.yaml").spec
    files = object.__new__(OperatorFiles)
    files._spec = replace(spec, invariant=Invariance("T", outputs, 1))
    table = SimpleNamespace(keeps_rows=kept)
    files._dispatch = SimpleNamespace(table=table)  # type: ignore[assignment]
    assert files._rows() == place
    files._spec = replace(spec, invariant=None)
    assert files._rows() is None
