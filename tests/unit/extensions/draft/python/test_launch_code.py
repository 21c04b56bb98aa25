"""A drafted `launch` hands over its config, and for None does what the file does by itself."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import copy
from types import ModuleType

import pytest
from fake_triton import Launch, install

from tuner.extensions.draft.python.drafting import draft_python

torch = pytest.importorskip("torch")
DATA = Path(__file__).parent / "data"
HEAD = """import torch, triton
import triton.language as tl

@triton.jit
def scale(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)
"""


@pytest.fixture
def launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    monkeypatch.chdir(tmp_path)
    return install(monkeypatch)


def module_of(path: Path) -> ModuleType:
    draft_python(path)
    file = path.with_name(f"{path.stem}_tune.py")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def of_data(name: str) -> ModuleType:
    copy(DATA / f"{name}.py", ".")
    return module_of(Path(f"{name}.py").resolve())


def own(text: str) -> ModuleType:
    Path("own.py").write_text(HEAD + text)
    return module_of(Path("own.py").resolve())


def test_a_config_takes_the_place_of_what_the_launch_passes(launches: list[Launch]) -> None:
    module = of_data("vector_add")
    tensors = {"x": torch.ones(1000), "y": torch.ones(1000)}
    found = module.launch({"BLOCK_SIZE": 256, "num_warps": 8}, tensors, {"length": 1000})
    assert found["output"].shape == (1000,)
    module.launch(None, tensors, {"length": 1000})
    tuned, baseline = launches
    assert (tuned.grid, tuned.handed["BLOCK_SIZE"], tuned.handed["num_warps"]) == ((4,), 256, 8)
    assert (baseline.grid, baseline.handed["BLOCK_SIZE"]) == ((1,), 1024)
    assert "num_warps" not in baseline.handed


@pytest.mark.parametrize("name", ["vector_add", "worn_steps"])
def test_its_functions_are_set_apart(launches: list[Launch], name: str) -> None:
    of_data(name)
    text = Path(f"{name}_tune.py").read_text()
    heads = re.findall(r"(.*)\n(.*)\n(?:@cache\n)?def ", text)
    assert heads
    assert {*heads} == {("", "")}


def test_the_autotuner_is_passed_by_with_a_config_and_asked_without(launches: list[Launch]) -> None:
    module = of_data("power_mix")
    tensors = {"doses": torch.ones(64, 32).half(), "tastes": torch.ones(32, 128).half()}
    config = {
        "TILE_POTS": 16,
        "TILE_BOWLS": 16,
        "TILE_SPOONS": 16,
        "GROUP_AISLE": 1,
        "num_warps": 2,
    }
    module.launch(config, tensors, {})
    module.launch(None, tensors, {})
    assert [one.grid for one in launches] == [(32,), (4,)]
    assert [one.handed["TILE_BOWLS"] for one in launches] == [16, 64]


def test_heuristics_around_the_autotuner_stay(launches: list[Launch]) -> None:
    module = of_data("worn_steps")
    for config in ({"num_warps": 2}, None):
        module.launch(config, {"treads": torch.ones(2, 100, 3)}, {})
    assert [one.handed["HAS_POLISH"] for one in launches] == [True, True]
    assert [one.handed["num_warps"] for one in launches] == [2, 1]


def test_a_config_goes_into_the_dict_that_the_launcher_looks_up(launches: list[Launch]) -> None:
    module = of_data("patch_distance")
    half = torch.float16
    tensors = {
        **{"Left": torch.ones(70, 128, dtype=half), "Right": torch.ones(96, 128, dtype=half)},
        **{"Trust": torch.ones(70, 2), "Doubt": torch.ones(2, 2)},
    }
    module.launch({"BLOCK_P": 16, "num_warps": 8}, tensors, {})
    module.launch(None, tensors, {})
    assert [one.handed["BLOCK_P"] for one in launches] == [16, 64]
    assert [one.handed["num_warps"] for one in launches] == [8, 4]
    assert [one.grid for one in launches] == [(10,), (4,)]


@pytest.mark.parametrize(
    "body",
    [
        "def f(x: torch.Tensor):\n    n = x.numel()\n    B = 64\n"
        "    scale[(triton.cdiv(n, B),)](x, n, B)\n",
        "B = 64\ndef f(x: torch.Tensor):\n    n = x.numel()\n"
        "    scale[(triton.cdiv(n, B),)](x, n, BLOCK=B)\n",
        "def f(x: torch.Tensor, B: int = 64):\n    n = x.numel()\n"
        "    grid = (triton.cdiv(n, B),)\n    scale[grid](x, n, BLOCK=B)\n",
        "def f(x: torch.Tensor):\n    n = x.numel()\n    grid = (triton.cdiv(n, 64),)\n"
        "    scale[grid](x, n, BLOCK=64)\n",
        "def f(x: torch.Tensor, config):\n    n = x.numel()\n"
        "    scale[lambda meta: (triton.cdiv(n, meta['BLOCK']),)](x, n, **config)\n",
        "def f(x: torch.Tensor, B):\n    n, source = x.numel(), 1\n"
        "    def grid(meta):\n        return (triton.cdiv(n, meta['BLOCK']),)\n"
        "    scale[grid](x, n, BLOCK=B)\n",
        "def f(x: torch.Tensor):\n    n = x.numel()\n    for config in [1]:\n        B = 64\n"
        "        scale[(triton.cdiv(n, B), config)](x, n, num_warps=4, BLOCK=B)\n",
    ],
)
def test_the_grid_follows_the_config_however_it_is_written(
    launches: list[Launch], body: str
) -> None:
    if "config)" in body.partition("\n")[0]:
        body += "DEFAULT = {'BLOCK': 64, 'num_warps': 4}\n"
    module = own(body)
    for config in ({"BLOCK": 16, "num_warps": 2}, None):
        module.launch(config, {"x": torch.ones(640)}, {"n": 640})
    assert [one.grid[0] for one in launches] == [40, 10]
    assert [one.handed["BLOCK"] for one in launches] == [16, 64]
    assert launches[0].handed["num_warps"] == 2


AUTOTUNED = """import torch, triton
import triton.language as tl

@triton.autotune(configs=[triton.Config({"TILE": t}) for t in (64, 128, 256)], key=["n"])
@triton.jit
def shift(x_ptr, n, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(x_ptr + at, 1 + tl.load(x_ptr + at, mask=at < n), mask=at < n)

def go(x: torch.Tensor):
    n = x.numel()
    """


@pytest.mark.parametrize(
    "body",
    [
        "shift[(triton.cdiv(n, 64),)](x, n)",
        "shift[((n + 63) // 64,)](x, n)",
        "shift[((n + 64 - 1) // 64,)](x, n)",
        "blocks = (n - 1) // 64 + 1; shift[(blocks,)](x, n)",
        "B = 64; shift[((n + B - 1) // B,)](x, n)",
        "shift[lambda meta: (triton.cdiv(n, 64),)](x, n)",
        "grid = (triton.cdiv(n, 64), 8); shift[grid](x, n)",
        "def grid(meta): return (triton.cdiv(n, 64),)\n    shift[grid](x, n)",
    ],
)
def test_a_grids_number_that_an_autotuned_launch_leaves_out_follows_the_config(
    launches: list[Launch], body: str
) -> None:
    Path("own.py").write_text(AUTOTUNED + body)
    module = module_of(Path("own.py").resolve())
    for tile in (64, 256):
        module.launch({"TILE": tile}, {"x": torch.ones(4097)}, {})
    assert [one.grid[0] for one in launches] == [65, 17]


def test_a_grids_number_that_is_no_value_of_a_parameter_is_noted(launches: list[Launch]) -> None:
    Path("own.py").write_text(AUTOTUNED + "shift[(triton.cdiv(n, 32),)](x, n)")
    assert draft_python(Path("own.py")).notes == ("the grid's 32 (line 12) does not follow TILE",)


ADD_ONE = """import torch, triton
import triton.language as tl
from typing import Optional

@triton.jit
def add_one(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, 1 + tl.load(x_ptr + at, mask=at < n), mask=at < n)

def go(x: torch.Tensor, {}):
    n = x.numel()
    {}
    add_one[(triton.cdiv(n, 128),)](x, out, n, BLOCK=128)
    return out
"""
WHERE_NONE = "if out is None: out = torch.empty_like(x)"


@pytest.mark.parametrize(
    ("parameter", "made"),
    [
        ("out: torch.Tensor | None = None", WHERE_NONE),
        ("out=None", WHERE_NONE),
        ("out: Optional[torch.Tensor] = None", WHERE_NONE),
        ("out: torch.Tensor = None", WHERE_NONE),
        ("out: Optional[torch.Tensor]", WHERE_NONE),
        ("*, out=None", WHERE_NONE),
        ("out=False", "if out is False: out = torch.empty_like(x)"),
        ("out=None", "out = torch.empty_like(x) if out is None else out"),
        ("out=None, room=None", f"{WHERE_NONE}\n    if room is None: room = torch.empty_like(x)"),
        ("source=None", "out = source\n    if out is None: out = torch.empty_like(x)"),
    ],
)
def test_an_output_that_a_caller_may_hand_over_is_made(
    launches: list[Launch], parameter: str, made: str
) -> None:
    Path("own.py").write_text(ADD_ONE.format(parameter, made))
    module = module_of(Path("own.py").resolve())
    x = torch.ones(1000)
    for config in ({"BLOCK": 256, "num_warps": 8}, None):
        found = module.launch(config, {"x": x}, {"n": 1000})
        assert {*found} == {"out"}
        assert launches[-1].handed["out_ptr"] is found["out"]
        assert found["out"].shape == x.shape
        assert found["out"] is not x
    assert [one.grid for one in launches] == [(4,), (8,)]


def test_a_kernel_of_helion_makes_an_output_that_a_caller_may_hand_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    helion = ModuleType("helion")
    helion.Config = lambda **said: said  # type: ignore[attr-defined]
    helion.kernel = lambda **_: lambda function: function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "helion", helion)
    Path("own.py").write_text(
        "import helion, torch\n@helion.kernel(config=helion.Config(block_sizes=[64]))\n"
        "def copied(x: torch.Tensor, out=None):\n    if out is None:\n"
        "        out = torch.empty_like(x)\n    out[:] = x\n    return out\n"
    )
    x = torch.ones(4)
    found = module_of(Path("own.py").resolve()).launch(None, {"x": x}, {})
    assert found["out"].tolist() == x.tolist()


def test_what_autograd_keeps_is_left_out(launches: list[Launch]) -> None:
    module = own(
        "class Scale(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        n = x.numel()\n        ctx.save_for_backward(x)\n        ctx.n = n\n"
        "        scale[lambda meta: (triton.cdiv(n, meta['BLOCK']),)](x, n, BLOCK=64)\n"
    )
    assert module.launch(None, {"x": torch.ones(640)}, {}) is None
    assert launches[0].grid == (10,)


def test_a_hook_of_the_configs_runs_before_the_kernel(launches: list[Launch]) -> None:
    text = HEAD.replace(
        "@triton.jit",
        "def hook(nargs):\n    nargs['x_ptr'].fill_(nargs['BLOCK'])\n\n"
        "@triton.autotune([triton.Config({'BLOCK': b}, pre_hook=hook) for b in (16, 64)], ['n'])\n"
        "@triton.jit",
    )
    Path("hooked.py").write_text(
        text + "def f(x: torch.Tensor):\n    n = x.numel()\n    scale[(1,)](x, n)\n"
    )
    x = torch.zeros(4)
    module_of(Path("hooked.py").resolve()).launch({"BLOCK": 64, "num_warps": 4}, {"x": x}, {})
    assert x.tolist() == [64.0] * 4


def test_a_file_of_a_package_is_imported_as_part_of_it(launches: list[Launch]) -> None:
    package = Path("layers_to_tune")
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sizes.py").write_text("PARTS = 2\n")
    body = "def f(x: torch.Tensor):\n    n = x.numel() // PARTS\n    scale[(1,)](x, n, BLOCK=64)\n"
    (package / "own.py").write_text("from .sizes import PARTS\n" + HEAD + body)
    module = module_of((package / "own.py").resolve())
    module.launch(None, {"x": torch.ones(8)}, {})
    assert launches[0].handed["n"] == 4


INTERPRETED = """
import torch, vector_add_tune
x, y = torch.rand(1000), torch.rand(1000)
for config in ({"BLOCK_SIZE": 256, "num_warps": 8}, None):
    found = vector_add_tune.launch(config, {"x": x, "y": y}, {"length": 1000})
    assert torch.equal(found["output"], x + y)
"""


def test_a_drafted_launch_computes_what_the_file_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.chdir(tmp_path)
    copy(DATA / "vector_add.py", ".")
    draft_python(Path("vector_add.py"))
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", INTERPRETED], env=environment, check=True)
