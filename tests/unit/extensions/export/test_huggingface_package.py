"""A kernel of the Hub as it is written, in the loader of Hugging Face's `kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from dispatch_sample import COMPARISONS, write_project, write_session
from operator_sessions import OPERATORS, choices, write_operator_session

torch = pytest.importorskip("torch")
kernels = pytest.importorskip("kernels")

from kernels._rust import Digest, DigestAlgorithm, Metadata  # noqa: E402

from tuner.compiler.pool import NvrtcPool  # noqa: E402
from tuner.extensions.export.packages import export_package  # noqa: E402
from tuner.extensions.export.winners import winners_of  # noqa: E402
from tuner.model.errors import InputError  # noqa: E402

VARIANT = Path("build/torch-cuda")
ROWS, WIDTH = 6, 64


def exported(
    to: Path, sessions: Sequence[Path], compiler: NvrtcPool, package: str = "tuned_test"
) -> Path:
    winners = [winners_of(one, None, None) for one in sessions]
    export_package(winners, to, compiler, package, "kernels")
    return to


# Once in a process: what is loaded stays, and a second copy of it would have the same names.
@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, compiler: NvrtcPool) -> Path:
    """Write a kernel of two operators; each has a layer."""
    to = tmp_path_factory.mktemp("hub")
    names = ("rmsnorm", "silu_and_mul")
    sessions = [write_operator_session(to / name, name, choices(name)[0]) for name in names]
    return exported(to / "out", sessions, compiler)


@pytest.fixture
def tuned(folder: Path) -> Any:
    return kernels.get_local_kernel(folder / VARIANT)


def test_the_loader_finds_the_build_for_a_pytorch_with_cuda(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    module = kernels.get_local_kernel(folder)
    assert Path(module.__file__) == folder / VARIANT / "__init__.py"
    assert {"rmsnorm", "silu_and_mul", "layers"} <= set(module.__all__)
    namespace = getattr(torch.ops, module.__name__)
    assert hasattr(namespace, "rmsnorm")
    assert hasattr(namespace, "silu_and_mul")


def test_a_program_that_names_a_kernel_of_the_hub_gets_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv("LOCAL_KERNELS", f"someone/tuned={folder}")
    module = kernels.get_kernel("someone/tuned", version=1)
    assert Path(module.__file__) == folder / VARIANT / "__init__.py"


def test_a_pytorch_without_cuda_is_told_so(folder: Path) -> None:
    if torch.version.cuda is not None:
        pytest.skip("this PyTorch is built with CUDA")
    with pytest.raises(FileNotFoundError, match="torch-cuda"):
        kernels.get_local_kernel(folder)


def test_its_metadata_name_the_architecture_and_what_each_file_holds(folder: Path) -> None:
    metadata = Metadata.read_from_file(folder / VARIANT / "metadata.json")
    assert metadata.name.python_name == "tuned_test"
    assert metadata.backend.archs == ["9.0a"]
    # Bytecode of another test is none of its files.
    for one in (folder / VARIANT).rglob("*.pyc"):
        one.unlink()
    metadata.digest.validate(Digest.hash_variant(DigestAlgorithm.SHA256, folder / VARIANT))


def test_its_card_has_the_header_of_a_model_card(folder: Path) -> None:
    from huggingface_hub import ModelCard

    card = ModelCard((folder / "README.md").read_text(encoding="utf-8"))
    assert card.data.library_name == "kernels"
    assert card.data.license == "other"
    assert f'get_local_kernel(Path("{folder}"))' in card.text


def test_where_no_tuned_kernel_serves_the_fallback_does(tuned: Any) -> None:
    x, w = torch.randn(ROWS, WIDTH), torch.rand(WIDTH)
    out = torch.empty_like(x)
    tuned.rmsnorm(out, x, w, eps=1e-3)
    torch.testing.assert_close(out, torch.nn.functional.rms_norm(x, (WIDTH,), w, 1e-3))


def kernelized(folder: Path, name: str, layer: torch.nn.Module, mode: Any) -> torch.nn.Module:
    """Replace a layer by the one that the export has for it, as a user's model does."""
    model = torch.nn.Sequential(layer)
    repository = kernels.LocalLayerRepository(folder / VARIANT, layer_name=name)
    with kernels.use_kernel_mapping({name: {"cpu": repository}}):
        return kernels.kernelize(model, mode=mode, device="cpu", use_fallback=False)


class Silu(torch.nn.Module):
    """A model's own layer, which counts its calls."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        gate, up = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up


class Norm(torch.nn.Module):
    """The same for a norm."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(WIDTH))
        self.variance_epsilon = 1e-5

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.nn.functional.rms_norm(hidden, (WIDTH,), self.weight, self.variance_epsilon)


LAYERS = pytest.mark.parametrize(("name", "own"), [("SiluAndMul", Silu), ("RMSNorm", Norm)])


@LAYERS
def test_a_layer_stands_in_and_calls_the_one_it_replaced(folder: Path, name: str, own: Any) -> None:
    decorated = kernels.use_kernel_forward_from_hub(name)(own)
    model = kernelized(folder, name, decorated(), kernels.Mode.INFERENCE)
    assert model[0].forward.__func__.__module__.endswith(".layers")
    x = torch.randn(2, 3, WIDTH)
    with torch.no_grad():
        torch.testing.assert_close(model(x), own.forward(model[0], x))
    assert model[0].calls == 2, "a CPU has no tuned kernel"


@LAYERS
def test_a_layer_is_part_of_a_compiled_graph(folder: Path, tuned: Any, name: str, own: Any) -> None:
    decorated = kernels.use_kernel_forward_from_hub(name)(own)
    mode = kernels.Mode.INFERENCE | kernels.Mode.TORCH_COMPILE
    model = kernelized(folder, name, decorated(), mode)
    x = torch.randn(2, 3, WIDTH)
    with torch.no_grad():
        expected = model(x)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), expected)


@LAYERS
def test_a_layer_does_without_one_to_replace(tuned: Any, name: str, own: Any) -> None:
    layer, model = getattr(tuned.layers, name)(), own()
    for attribute in ("weight", "variance_epsilon"):
        if hasattr(model, attribute):
            setattr(layer, attribute, getattr(model, attribute))
    x = torch.randn(2, 3, WIDTH)
    torch.testing.assert_close(layer(x), model(x))


@pytest.mark.parametrize("package", ["Tuned", "_tuned", "tuned__kernels", "t"])
def test_a_name_that_the_hub_has_not_is_an_error(
    tmp_path: Path, compiler: NvrtcPool, package: str
) -> None:
    session = write_session(tmp_path / "session", write_project(tmp_path / "project"), COMPARISONS)
    with pytest.raises(InputError, match="no name of a kernel of the Hub"):
        exported(tmp_path / "out", [session], compiler, package)
    assert not (tmp_path / "out").exists()


def test_an_operator_that_is_no_layer_has_none(tmp_path: Path, compiler: NvrtcPool) -> None:
    session = write_session(tmp_path / "session", write_project(tmp_path / "project"), COMPARISONS)
    folder = exported(tmp_path / "out", [session], compiler)
    module = kernels.get_local_kernel(folder / VARIANT)
    assert set(module.OPERATORS) == {"blend"}
    assert not hasattr(module, "layers")


@pytest.mark.slow
def test_all_operators_are_one_kernel(tmp_path: Path, compiler: NvrtcPool) -> None:
    sessions = [
        write_operator_session(tmp_path / name, name, choices(name)[-1]) for name in OPERATORS
    ]
    folder = exported(tmp_path / "out", sessions, compiler)
    module = kernels.get_local_kernel(folder / VARIANT)
    assert sorted(module.OPERATORS) == OPERATORS
    assert hasattr(module.layers, "GeluTanhAndMul")
    assert hasattr(module.layers, "GemmaRMSNorm")
