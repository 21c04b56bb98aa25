"""`tune export --format kernelbench`: modules as a harness runs them, on problems of ours."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fake_gpu import fake_gpu  # noqa: E402
from operator_sessions import write_session_of  # noqa: E402

from tuner.device.recorded.known_gpus import GPUS  # noqa: E402
from tuner.extensions.draft.problems.cutting import propose  # noqa: E402

Tune = Callable[..., Any]
Arrays = Mapping[str, Any]

HEAD = "import torch\nfrom torch import nn\n\nT = 6\nH = 32\n\n\n"
NORM = """class Model(nn.Module):
    def __init__(self, width, eps=1e-5):
        super(Model, self).__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width, eps=eps))

    def forward(self, x):
        return self.inner(x)


def get_inputs():
    return [torch.rand(T, H)]


def get_init_inputs():
    return [H]
"""
SQUARE = """class Model(nn.Module):
    '''A text may have "\\n" and ''' "in it."

    def forward(self, x):
        return x * x


def get_inputs():
    return [torch.randn(T, H)]
"""
LOSS = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.0)

    def forward(self, x, labels, share):
        near = self.drop(x * share)
        return near, near.gather(1, labels[:, None]).mean()


def get_inputs():
    return [torch.randn(T, H), torch.randint(0, H, (T,)), 0.5]


def get_init_inputs():
    return []
"""


def norm(given: Arrays) -> None:
    x = given["x"]
    centred = x - x.mean(1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    given["out"][...] = scaled * given["inner_0_weight"] + given["inner_0_bias"]


def square(given: Arrays) -> None:
    given["out"][...] = given["x"] ** 2


def loss(given: Arrays) -> None:
    given["out0"][...] = 0.5 * given["x"]
    given["out1"][...] = given["out0"][np.arange(6), given["labels"]].mean()


@dataclass(frozen=True)
class Problem:
    """A problem, the arrays of its kernel as (name, dtype, shape), and what the kernel computes."""

    text: str
    arrays: Sequence[tuple[str, str, tuple[str, ...]]]
    compute: Callable[[Arrays], None]


X, OUT = ("x", "float32", ("T", "H")), ("out", "float32", ("T", "H"))
WEIGHTS = [(f"inner_0_{name}", "float32", ("H",)) for name in ("weight", "bias")]
LABELS, OUT1 = ("labels", "int64", ("T",)), ("out1", "float32", ("1",))
PROBLEMS = {
    "layer_norm": Problem(HEAD + NORM, [OUT, X, *WEIGHTS], norm),
    "square": Problem(HEAD + SQUARE, [X, OUT], square),
    "loss": Problem(HEAD + LOSS, [X, LABELS, ("out0", *OUT[1:]), OUT1], loss),
}
SPACE = """\
version: 1
kernel: {name}
source: {name}.cu
reference: {name}.py
template: {name}.cu.j2
axes: [T, H]
arguments:
{arguments}
  - {{name: T, dtype: int32, value: T}}
workloads: {{tuned: [{{T: 6, H: 32}}]}}
min_bytes: T * H * 8
baseline: {{launch: [{{kernel: {name}, grid: [T], block: [32]}}]}}
parameters: {{block: [32, 64]}}
default: {{block: 32}}
launch: [{{kernel: {name}, grid: [T], block: [block]}}]
tolerance:
{tolerance}
"""
CTYPES = {"float32": "float", "int64": "long long"}


def write_problem(folder: Path, name: str, *, time_us: float = 5.0, text: str = "") -> Path:
    """Write a problem, a kernel that compiles, a search space and a session; return the session."""
    problem, folder = PROBLEMS[name], folder / name
    folder.mkdir(parents=True)
    outputs = [one for one, _, _ in problem.arrays if one.startswith("out")]
    arguments = [
        f"  - {{name: {one}, dtype: {dtype}, shape: [{', '.join(shape)}], "
        f"role: {'output' if one in outputs else 'input'}}}"
        for one, dtype, shape in problem.arrays
    ]
    tolerance = [f"  {one}: {{relative: 1.0e-5}}" for one in outputs]
    space = folder / f"{name}.yaml"
    space.write_text(
        SPACE.format(name=name, arguments="\n".join(arguments), tolerance="\n".join(tolerance))
    )
    parameters = ", ".join(f"{CTYPES[dtype]}* {one}" for one, dtype, _ in problem.arrays)
    source = f"__global__ void {name}({parameters}, int T) {{\n  {outputs[0]}[0] = T;\n}}\n"
    (folder / f"{name}.cu").write_text(source)
    (folder / f"{name}.cu.j2").write_text(f"// @{{ block }}@\n{source}")
    (folder / f"{name}.py").write_text(text or problem.text)
    return write_session_of(folder / "session", space, {}, time_us=time_us)


class HostDriver:
    """Runs a kernel's own arithmetic on the host's memory, at the addresses of each launch."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self.loaded, self.blocks = problem, list[bytes](), list[int]()

    def load(self, cubin: bytes) -> int:
        self.loaded.append(cubin)
        return 1

    def kernel(self, library: int, symbol: str) -> int:
        return 1

    def launch(self, where: int, kernel: int, parameters: int, extra: None) -> int:
        self.blocks.append(ctypes.c_uint.from_address(where + 12).value)
        arrays = self._problem.arrays
        places = (ctypes.c_void_p * (len(arrays) + 1)).from_address(parameters)
        assert ctypes.c_int32.from_address(places[-1]).value == 6
        given = {}
        for (name, dtype, shape), place in zip(arrays, places, strict=False):
            at = ctypes.c_void_p.from_address(place).value
            sizes = tuple({"T": 6, "H": 32}.get(one, 1) for one in shape)
            kind = np.ctypeslib.as_ctypes_type(np.dtype(dtype))
            flat = (kind * int(np.prod(sizes))).from_address(at)
            given[name] = np.ctypeslib.as_array(flat).reshape(sizes)
        self._problem.compute(given)
        return 0


@dataclass
class Harness:
    """What KernelBench does: the problem and the answer are run as texts, in one namespace."""

    problem: Problem
    answer: str
    names: dict[str, Any]
    driver: HostDriver

    def made(self, *arguments: Any) -> tuple[Any, Any]:
        """Make both models with the same seed."""
        found = []
        for name in ("Model", "ModelNew"):
            torch.manual_seed(42)
            found.append(self.names[name](*arguments))
        return found[0], found[1]

    def inputs(self) -> list[Any]:
        torch.manual_seed(1)
        return list(self.names["get_inputs"]())

    @property
    def init(self) -> list[Any]:
        return list(self.names.get("get_init_inputs", list)())


@pytest.fixture
def harness(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Harness]]:
    """Export a problem, and run it on a GPU that is the host's memory."""
    before = set(sys.modules)

    def run(name: str, **session: Any) -> Harness:
        to = tmp_path / "out"
        result = tune(
            *("export", write_problem(tmp_path, name, **session)),
            *("--to", to, "--format", "kernelbench"),
        )
        assert result.exit_code == 0, result.output
        assert {one.name for one in to.iterdir()} == {f"{name}.py", "dispatch.json"}
        answer = (to / f"{name}.py").read_text("utf-8")
        names: dict[str, Any] = {}
        exec(PROBLEMS[name].text, names)  # noqa: S102
        # Harnesses set variables in a line before it.
        exec(f"import os\n{answer}", names)  # noqa: S102
        fake_gpu(monkeypatch)
        monkeypatch.setattr(torch.Tensor, "get_device", lambda _: 0)
        driver = HostDriver(PROBLEMS[name])
        names["ModelNew"].operator._open_driver = lambda: driver
        return Harness(PROBLEMS[name], answer, names, driver)

    yield run
    for name in set(sys.modules) - before:
        if name.startswith("_tuned_"):
            del sys.modules[name]


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.filterwarnings("error")
def test_a_harness_gets_from_the_kernel_what_the_problem_gives(
    harness: Callable[..., Harness], name: str
) -> None:
    run = harness(name)
    model, new = run.made(*run.init)
    assert list(new.state_dict()) == list(model.state_dict())
    for one, other in zip(model.parameters(), new.parameters(), strict=True):
        assert torch.equal(one, other), "the same seed draws the same weights"
    new.load_state_dict({key: one + 1.0 for key, one in model.state_dict().items()})
    model.load_state_dict(new.state_dict())
    for count in (1, 2):  # the second by the quick way
        inputs = run.inputs()
        before = [one.clone() if hasattr(one, "clone") else one for one in inputs]
        found, expected = new(*inputs), model(*inputs)
        assert type(found) is type(expected)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        assert all(np.array_equal(a, b) for a, b in zip(before, inputs, strict=True))
        assert len(run.driver.blocks) == count
    assert len(run.driver.loaded) == 1
    assert run.driver.loaded[0].startswith(b"\x7fELF")


def test_the_file_shows_its_sources_and_needs_nothing_of_ours(
    harness: Callable[..., Harness],
) -> None:
    run = harness("layer_norm")
    assert "__global__ void layer_norm(" in run.answer
    assert NORM in run.answer
    used = {name for name in run.names if not name.startswith("_")}
    assert used - {"os", "torch", "nn"} == {"T", "H", "Model", "ModelNew", "get_inputs",
                                            "get_init_inputs"}  # fmt: skip
    code = run.answer.replace("tuner.extensions.", "")
    assert "import tuner" not in code and "from tuner" not in code


def sliced(inputs: list[Any]) -> list[Any]:
    wide = torch.zeros(6, 64)[:, ::2]
    return [wide.copy_(inputs[0])]


def same(given: Any) -> Any:
    return given


def evaluated(model: Any) -> Any:
    return model.eval()


OTHERWISE: list[tuple[str, str, Callable[[Any], Any], Callable[[list[Any]], list[Any]]]] = [
    ("not tuned for (5, 32)", "layer_norm", same, lambda given: [given[0][:5]]),
    ("x is torch.float64, not", "square", same, lambda given: [given[0].double()]),
    ("not contiguous", "layer_norm", same, sliced),
    ("wants a derivative", "layer_norm", same, lambda given: [given[0].requires_grad_()]),
    ("not tuned for (6, 32), (6,), 0.25", "loss", same, lambda given: [*given[:2], 0.25]),
    ("training is False, not True", "loss", evaluated, same),
]


@pytest.mark.parametrize(
    ("why", "name", "changed", "inputs"), OTHERWISE, ids=[why for why, *_ in OTHERWISE]
)
def test_what_was_not_tuned_the_problem_computes_and_that_is_said(
    harness: Callable[..., Harness],
    why: str,
    name: str,
    changed: Callable[[Any], Any],
    inputs: Callable[[list[Any]], list[Any]],
) -> None:
    run = harness(name)
    model, new = (changed(one) for one in run.made(*run.init))
    given = inputs(run.inputs())
    with pytest.warns(UserWarning, match="PyTorch computes it") as caught:
        found = new(*given)
    assert why in str(caught[0].message)
    torch.testing.assert_close(found, model(*given), rtol=0.0, atol=0.0)
    assert not run.driver.blocks


def test_a_mode_that_changes_nothing_does_not_count(harness: Callable[..., Harness]) -> None:
    run = harness("layer_norm")
    _, new = run.made(*run.init)
    new.eval()(*run.inputs())
    assert len(run.driver.blocks) == 1


@pytest.mark.parametrize("arguments", [(32, 1e-3), (32, 1e-5)])
def test_a_model_of_other_arguments_is_the_problem_s_own(
    harness: Callable[..., Harness], arguments: tuple[Any, ...]
) -> None:
    run = harness("layer_norm")
    as_posed = arguments == (32, 1e-5)
    _, new = run.made(*arguments)
    if as_posed:
        new(*run.inputs())
    else:
        with pytest.warns(UserWarning, match="made with other arguments than the problem's"):
            new(*run.inputs())
    assert bool(run.driver.blocks) is as_posed


@pytest.mark.filterwarnings("error:.*PyTorch computes it")
def test_it_may_be_traced(harness: Callable[..., Harness]) -> None:
    run = harness("layer_norm")
    model, new = run.made(*run.init)
    (x,) = run.inputs()
    compiled = torch.compile(new, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))


def test_a_first_kernel_that_nothing_beat_serves_itself(harness: Callable[..., Harness]) -> None:
    run = harness("square", time_us=11.0)
    _, new = run.made()
    (x,) = run.inputs()
    torch.testing.assert_close(new(x), x * x)
    assert run.driver.blocks == [32]
    assert "// 32" not in run.answer


PLAIN = HEAD + SQUARE
MADE = "    def __init__(self, kind):\n        super().__init__()\n\n    def forward"
REFUSED = {
    "is no KernelBench problem": ("square", "def reference(xp, inputs, axes):\n    return {}\n"),
    "the kernel does not take the problem's y": (
        "square",
        PLAIN.replace("self, x", "self, x, y").replace("return [", "return [torch.randn(T), "),
    ),
    "the problem has no inner_0_bias, which the kernel takes": ("layer_norm", PLAIN),
    "x is float32, and float16 in the problem": (
        "square",
        PLAIN.replace("torch.randn(T, H)", "torch.randn(T, H).half()"),
    ),
    "something else than numbers": (
        "square",
        PLAIN.replace("    def forward", MADE) + "\n\ndef get_init_inputs():\n    return [nn]\n",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_a_harness_could_not_run_is_refused(tune: Tune, tmp_path: Path, why: str) -> None:
    name, text = REFUSED[why]
    session = write_problem(tmp_path, name, text=text)
    result = tune("export", session, "--to", tmp_path / "out", "--format", "kernelbench")
    assert result.exit_code == 2, result.output
    assert why in result.output.replace("\n", " ")
    assert not (tmp_path / "out").exists()


CUT = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(H, H), nn.Linear(H, H)

    def forward(self, x):
        y = self.one(x)
        return torch.tanh(self.two(y * y))


def get_inputs():
    return [torch.randn(T, H)]
"""


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A problem that is cut, and a session of one of its two parts, `product`."""
    path = tmp_path / "posed.py"
    path.write_text(HEAD + CUT)
    cut = propose(path, GPUS["h200"], given={"product": ["mul"]})

    def compute(given: Arrays) -> None:
        given["out"][...] = given["linear"] ** 2

    arrays = [("linear", *X[1:]), OUT]
    monkeypatch.setitem(PROBLEMS, "product", Problem(cut.files["product.py"], arrays, compute))
    write_problem(tmp_path, "product")
    (tmp_path / "product/cut.py").write_text(cut.files["cut.py"])
    return tmp_path / "product"


@pytest.mark.filterwarnings("error")
def test_a_tuned_part_of_a_cut_runs_in_the_whole(
    tune: Tune, parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = parts / "out"
    result = tune("export", parts / "session", "--to", to, "--format", "kernelbench")
    assert result.exit_code == 0, result.output
    assert {one.name for one in to.iterdir()} == {"product.py", "cut.py", "dispatch.json"}
    names: dict[str, Any] = {}
    exec(HEAD + CUT, names)  # noqa: S102
    exec((to / "cut.py").read_text("utf-8"), names)  # noqa: S102
    fake_gpu(monkeypatch)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda _: 0)
    driver = HostDriver(PROBLEMS["product"])
    names["_cut_parts"]["product"].operator._open_driver = lambda: driver
    model, new = Harness(PROBLEMS["product"], "", names, driver).made()
    (x,) = names["get_inputs"]()
    torch.testing.assert_close(new(x), model(x))
    assert driver.blocks == [32]
    assert "operator" not in dir(names["_cut_parts"]["tanh"])


def test_a_part_that_was_changed_is_not_put_into_the_whole(tune: Tune, parts: Path) -> None:
    problem = parts / "product.py"
    problem.write_text(problem.read_text() + "# mine\n")
    result = tune("export", parts / "session", "--to", parts / "out", "--format", "kernelbench")
    assert result.exit_code == 2, result.output
    assert "is not as cut.py beside it has it" in result.output.replace("\n", " ")
