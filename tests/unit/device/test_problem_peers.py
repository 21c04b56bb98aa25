"""Peers that a problem has by itself: what they compute, how exactly, and where they are kept."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.unit.device.test_problems import OUT, SIZES, array, problem, spec_of  # noqa: E402
from tuner.device.callables import compile_in_place  # noqa: E402
from tuner.device.problem_peers import is_posed, own_peers, peers_of  # noqa: E402
from tuner.device.reference import chosen_peers  # noqa: E402
from tuner.model.kernel import KernelSpec, TorchText  # noqa: E402

NAMES = ("eager", "torch.compile", "torch.compile-max")


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Note the modes that are compiled; what is traced runs as it is."""
    modes: list[str] = []
    compile_ = torch.compile

    def noted(function: Any, *, dynamic: bool, mode: str) -> Any:
        modes.append(mode)
        return compile_(function, dynamic=dynamic, backend="eager", fullgraph=True)

    monkeypatch.setattr(torch, "compile", noted)
    yield modes
    torch.compiler.reset()


def tensors_of(spec: KernelSpec) -> dict[str, Any]:
    torch.manual_seed(3)
    found = {}
    for one in spec.arguments:
        shape = one.dimensions(SIZES)
        dtype = getattr(torch, one.dtype)
        is_index = one.dtype == "int64"
        found[one.name] = torch.randint(0, 2, shape) if is_index else torch.randn(shape).to(dtype)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_problem_runs_at_the_sizes_and_with_the_weights_of_the_call(
    tmp_path: Path, name: str, compiled: list[str]
) -> None:
    spec = problem(tmp_path, "return self.layer(x) + i[:, None]", OUT)
    call = peers_of(spec)[name]
    modes = {"torch.compile": ["default"], "torch.compile-max": ["max-autotune-no-cudagraphs"]}
    for _ in range(2):  # over other arrays, as each set of buffers is
        given = tensors_of(spec)
        expected = torch.nn.functional.linear(
            given["x"], given["layer_weight"], given["layer_bias"]
        )
        with torch.no_grad():
            found = call(given, SIZES)
        assert list(found) == ["out"]
        torch.testing.assert_close(found["out"], expected + given["i"][:, None])
    assert compiled == modes.get(name, []), "it is compiled once for a workload"
    with torch.no_grad():
        small = {key: one[:2] if key in ("x", "i", "out") else one for key, one in given.items()}
        assert call(small, {**SIZES, "T": 2})["out"].shape == (2, 2)
    assert len(compiled) == 2 * len(modes.get(name, []))


def test_what_is_compiled_later_finds_the_problems_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = problem(tmp_path, "return torch.relu(self.layer(x)) + i[:, None]", OUT)
    noted = torch.compile

    def collected(function: Any, **options: Any) -> Any:
        gc.collect()
        return noted(function, **options)

    monkeypatch.setattr(torch, "compile", collected)
    with torch.no_grad():
        assert list(peers_of(spec)["torch.compile"](tensors_of(spec), SIZES)) == ["out"]


def test_its_results_have_the_shapes_and_types_of_the_outputs(tmp_path: Path) -> None:
    outs = array("near", "float16", "T H", "output"), array("mean", "float32", "1", "output")
    spec = problem(tmp_path, "return x, x.mean()", *outs)
    found = peers_of(spec)["eager"](tensors_of(spec), SIZES)
    assert [(one.dtype, tuple(one.shape)) for one in found.values()] == [
        (torch.float16, (5, 7)),
        (torch.float32, (1,)),
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["x * T + F.relu(y)", "z = x * T\nz = z + F.relu(y)"])
def test_an_expression_has_them_too(tmp_path: Path, name: str, text: str) -> None:
    arguments = [array(n, "float32", "T H", "input" if n != "z" else "output") for n in "xyz"]
    spec = spec_of(tmp_path / "k.py", *arguments)
    spec = replace(spec, torch=TorchText(text, 1), reference=spec.path)
    given = tensors_of(spec)
    found = peers_of(spec)[name](given, SIZES)
    torch.testing.assert_close(found["z"], given["x"] * 5 + torch.relu(given["y"]))


def test_an_array_may_have_a_name_that_python_does_not_take(tmp_path: Path) -> None:
    arguments = array("in", "float32", "T H"), OUT
    spec = replace(spec_of(tmp_path / "k.py", *arguments), torch=TorchText("torch.ones(T, 2)", 1))
    spec = replace(spec, reference=spec.path)
    assert peers_of(spec)["eager"](tensors_of(spec), SIZES)["out"].sum() == 10


def test_tf32_is_allowed_while_it_runs_and_left_as_it_was(tmp_path: Path) -> None:
    text = "assert torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32\n"
    spec = problem(tmp_path, f"{text}        return self.layer(x)", OUT)
    before = torch.backends.cuda.matmul.allow_tf32
    peers_of(spec)["eager"](tensors_of(spec), SIZES)
    assert torch.backends.cuda.matmul.allow_tf32 is before is False


def test_what_the_problem_names_itself_stands_beside_them(tmp_path: Path) -> None:
    spec = problem(tmp_path, "return self.layer(x)", OUT)
    more = "\n\npeers = {'mine': print, 'eager': print}\n"
    spec.reference.write_text(spec.reference.read_text() + more)
    assert own_peers(spec) == NAMES
    assert chosen_peers(spec.reference, (), own_peers(spec)) == (*NAMES, "mine")
    assert peers_of(spec)["eager"] is print


def test_a_reference_file_has_none_but_its_own(tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    path.write_text("def reference(xp, inputs, axes):\n    return {}\n")
    spec = spec_of(path, OUT)
    assert not is_posed(spec)
    assert own_peers(spec) == ()
    assert peers_of(spec) == {}


def test_what_is_compiled_stays_in_our_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path))
    compile_in_place()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "inductor")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "theirs")
    compile_in_place()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "theirs"
