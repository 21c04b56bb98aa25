"""A problem that is cut: what stays in PyTorch, problems for the rest, and the model of all."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from torch_here import needs_torch

from tuner.device.recorded.known_gpus import GPUS
from tuner.extensions.draft.problems.cutting import Proposal, propose
from tuner.extensions.draft.problems.statement import read_statement
from tuner.model.errors import InputError

pytestmark = needs_torch
Tune = Callable[..., Result]

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\nN = 3\nC = 8\n\n\n"
MODEL = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, {arguments}):
        {forward}


def get_inputs():
    return [{inputs}]
"""
IMAGE, ROWS = "torch.rand(N, C, 12, 10)", "torch.randn(N, C)"


def write(
    folder: Path, forward: str, *, init: str, inputs: str = ROWS, arguments: str = "x"
) -> Path:
    path = folder / "posed.py"
    parts = {"forward": forward, "init": init, "inputs": inputs, "arguments": arguments}
    path.write_text(
        HEAD + MODEL.format(**{k: v.replace("\n", "\n        ") for k, v in parts.items()})
    )
    return path


def proposed(path: Path, **asked: Any) -> Proposal:
    return propose(path, GPUS["h200"], **asked)


def nodes_of(proposal: Proposal) -> dict[str, tuple[str, ...]]:
    return {one.name: one.nodes for one in proposal.steps if one.is_part}


def kept_by(proposal: Proposal) -> list[str]:
    return [one.name for one in proposal.steps if not one.is_part]


def harness(path: Path, answer: str) -> tuple[Any, Any, Mapping[str, Any]]:
    """Run problem and answer as texts in one namespace; make both models with one seed."""
    import torch

    names: dict[str, Any] = {}
    exec(path.read_text(), names)  # noqa: S102
    exec(answer, names)  # noqa: S102
    made = []
    for name in ("Model", "ModelNew"):
        torch.manual_seed(0)
        made.append(names[name](*names.get("get_init_inputs", list)()))
    return made[0], made[1], names


BLOCK = {
    "init": "self.one, self.two = nn.Conv2d(C, C, 3, padding=1), nn.Conv2d(C, C, 1, bias=False)\n"
    "self.norm, self.act = nn.BatchNorm2d(C), nn.ReLU(inplace=True)\n"
    "self.last = nn.Linear(C * 55, 5)",
    "forward": "y = self.act(self.norm(self.one(x)))\n"
    "y = F.max_pool2d(self.two(y) + x * 0.5, 2, stride=(1, 2))\n"
    "return self.last(y.flatten(1)[:, ::1][:, : C * 55])",
    "inputs": IMAGE,
}


def test_libraries_keep_products_and_connected_rests_are_parts(tmp_path: Path) -> None:
    found = proposed(write(tmp_path, **BLOCK))
    assert kept_by(found) == ["conv2d", "conv2d_1", "linear"]
    assert nodes_of(found) == {
        "bias_batch_norm_relu": ("conv2d_bias", "batch_norm", "relu"),
        "mul_add_max_pool2d": ("mul", "add_1", "max_pool2d"),  # x * 0.5 waits for what reads it
    }
    assert found.biases == {"conv2d": "bias_batch_norm_relu", "linear": "PyTorch"}
    assert found.compared == "3 draws of its own sizes"


def test_each_part_is_a_problem_whose_sizes_are_those_of_the_whole(tmp_path: Path) -> None:
    found = proposed(write(tmp_path, **BLOCK))
    for name, text in found.files.items():
        (tmp_path / name).write_text(text)
    stated = read_statement(tmp_path / "bias_batch_norm_relu.py")
    assert stated.axes[0] == "N"
    assert {one.name: one.shape[0] for one in stated.arrays} == {
        "conv2d": "N",
        **dict.fromkeys(("bias", "weight", "bias_2"), stated.arrays[1].shape[0]),
        "out": "N",
    }
    assert stated.tuned[0]["N"] == 3


def test_the_whole_gives_what_the_problem_gives_with_its_weights(tmp_path: Path) -> None:
    import torch

    path = write(tmp_path, **BLOCK)
    model, new, names = harness(path, proposed(path).files["cut.py"])
    assert list(new.state_dict()) == list(model.state_dict())
    new.load_state_dict({key: one * 1.5 for key, one in model.state_dict().items()})
    model.load_state_dict(new.state_dict())
    (x,) = names["get_inputs"]()
    with warnings.catch_warnings(action="error"):
        torch.testing.assert_close(new(x), model(x))
        assert not new(x).requires_grad
    with pytest.warns(UserWarning, match=r"posed.py: training is False: PyTorch computes it"):
        assert new.eval()(x).requires_grad
    with pytest.warns(UserWarning, match="not cut for these inputs"):
        new(x.double().float()[:2])


def test_worth_is_bytes_and_operations_against_the_gpu_s_rates(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "return torch.tanh(self.fc(x)) * 2 + 1",
        init="self.fc = nn.Linear(C, 1 << 20)",
        inputs="torch.randn(64, C)",
    )
    linear, part = proposed(path).steps
    written = 64 * (1 << 20) * 4
    assert part.worth.moved_bytes == 2 * written
    assert part.worth.floor_us == pytest.approx(2 * written / 4.8e6)
    assert part.worth.one_by_one_us == pytest.approx(3 * part.worth.floor_us)
    assert linear.worth.flops == 2 * 64 * 8 * (1 << 20)
    assert linear.worth.moved_bytes == written + (64 * 8 + 9 * (1 << 20)) * 4


def test_parts_that_compute_the_same_are_one_problem(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "for layer in self.layers:\n    x = F.silu(layer(x)) * x\nreturn x",
        init="self.layers = nn.ModuleList(nn.Linear(C, C) for _ in range(3))",
    )
    found = proposed(path)
    assert set(found.files) == {"silu_mul.py", "cut.py"}
    assert [one.problem for one in found.steps if one.is_part] == ["silu_mul"] * 3
    model, new, names = harness(path, found.files["cut.py"])
    (x,) = names["get_inputs"]()
    assert (new(x) == model(x)).all()


def test_views_at_a_part_s_edges_stay_and_its_inputs_lie_in_order(tmp_path: Path) -> None:
    import torch

    path = write(
        tmp_path,
        "q, k = self.fc(x).view(N, 6, 2, C).transpose(1, 2).chunk(2, dim=-1)\n"
        "share = torch.softmax(q @ k.transpose(-2, -1), dim=-1)\n"
        "best, place = share.max(dim=-1)\n"
        "share, rest = share @ k, [place.mT, q.exp()]\n"
        "return share.transpose(1, 2).reshape(N, -1), {'best': best, 'rest': rest}",
        init="self.fc = nn.Linear(C, 2 * C)",
        inputs="torch.randn(N, 6, C)",
    )
    found = proposed(path)
    assert {name: one[-1] for name, one in nodes_of(found).items()} == {
        "softmax_max": "getitem_3",
        "exp": "exp",
    }
    softmax = found.files["softmax_max.py"]
    assert softmax.count("return (softmax, getitem, getitem_1)") == 1
    assert "fc" not in softmax
    assert "view" in found.files["exp.py"], "a part makes for itself what is scattered"
    model, new, names = harness(path, found.files["cut.py"])
    (x,) = names["get_inputs"]()
    with torch.no_grad():
        assert str(new(x)) == str(model(x))


def test_what_a_part_is_given_is_drawn_as_the_model_has_it(tmp_path: Path) -> None:
    init = (
        "self.fc = nn.Linear(C, C)\n"
        "self.scale = nn.Parameter(torch.ones(C))\n"
        "self.register_buffer('mask', torch.tril(torch.ones(C, C)))\n"
        "self.register_buffer('mean', torch.full((C,), 0.25))"
    )
    forward = (
        "y = (self.fc(x) - self.mean) * self.scale.sqrt()\n"
        "y = y[:, :, None].masked_fill(self.mask == 0, -1.0).sum(-1)\n"
        "return y + torch.tensor([1.0, float('inf')])[0] + y.gather(1, labels[:, None])"
    )
    inputs = f"{ROWS}, torch.randint(0, C, (N,))"
    path = write(tmp_path, forward, init=init, inputs=inputs, arguments="x, labels")
    found = proposed(path)
    (name,) = set(found.files) - {"cut.py"}
    names: dict[str, Any] = {}
    exec(found.files[name], names)  # noqa: S102
    part, given = names["Model"](), names["get_inputs"]()
    assert (names["N"], names["get_init_inputs"]()) == (3, [])
    by_shape = {tuple(one.shape): one for one in given if one.dim() != 1}
    assert (by_shape[8, 8] == by_shape[8, 8].tril()).all()
    assert by_shape[8, 8].sum() == 36
    assert part(*given).isfinite().all()
    lines = found.files[name].splitlines()
    for line in ("torch.full([C], 0.25, dtype=torch.float32),", "torch.rand(C),"):
        assert f"        {line}" in lines
    assert any(line.startswith("        torch.randint(") for line in lines)


def test_nothing_of_a_problem_s_size_is_allocated(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "return torch.relu(self.fc(x)).sum(-1)",
        init="self.fc = nn.Linear(C, 16)",
        inputs="torch.randn(rows, C)",
    )
    path.write_text(path.read_text().replace("C = 8", "C = 8\nrows = 1 << 40"))
    found = proposed(path)
    assert found.compared == "3 draws of rows 2"
    assert found.steps[1].worth.moved_bytes == (1 << 40) * 17 * 4


def test_a_cut_can_be_overruled(tmp_path: Path) -> None:
    path = write(tmp_path, **BLOCK)
    found = proposed(path, keep=["matmul", "conv2d_1"])
    assert kept_by(found) == ["conv2d_1", "linear"]
    assert next(iter(nodes_of(found).values())) == ("conv2d", "batch_norm", "relu")
    found = proposed(path, given={"tail": ["add_1", "max_pool2d"]})
    assert nodes_of(found)["tail"] == ("add_1", "max_pool2d")
    found = proposed(path, given={"all": ["conv2d", "batch_norm", "relu", "conv2d_1"]})
    assert nodes_of(found)["all"] == ("conv2d", "batch_norm", "relu", "conv2d_1")


FC = "self.fc = nn.Linear(C, C)"
REFUSED = {
    "has control flow on values|torch.export refuses its `forward`": (
        "y = self.fc(x)\nreturn y if y.sum() > 0 else -y",
        FC,
        ROWS,
    ),
    r"draws random numbers while it runs \(native_dropout\)": (
        "return F.dropout(self.fc(x), 0.5).add_(1)",
        FC,
        ROWS,
    ),
    r"draws random numbers while it runs \(rand_like\)": (
        "return self.fc(x) + torch.rand_like(x)",
        FC,
        ROWS,
    ),
    "its `forward` writes into x": ("x.mul_(2)\nreturn self.fc(x).relu()", FC, ROWS),
    "its `forward` writes into seen": (
        "self.seen.add_(1)\nreturn self.fc(x) * self.seen",
        f"{FC}\nself.register_buffer('seen', torch.zeros(C))",
        ROWS,
    ),
    "its input `x` is a list": ("return self.fc(x[0]).relu()", FC, f"[{ROWS}]"),
    r"has nothing for PyTorch's libraries \(conv, .*, fft\): it is one kernel": (
        "return x.softmax(-1)",
        "pass",
        ROWS,
    ),
    "leaves nothing for a kernel": ("return self.fc(x).t()", FC, ROWS),
    "the cut changes results: the whole, though no part does, differs by": (
        "self.calls += 1\nreturn self.fc(x).relu() * self.calls",
        f"{FC}\nself.calls = 0",
        ROWS,
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_cut_is_refused_in_one_line(tmp_path: Path, why: str) -> None:
    forward, init, inputs = REFUSED[why]
    path = write(tmp_path, forward, init=init, inputs=inputs)
    with pytest.raises(InputError, match=why) as caught:
        proposed(path)
    assert "\n" not in caught.value.message
    assert caught.value.path == path


MISFITS: dict[str, dict[str, Any]] = {
    "--keep names convolve, which the problem does not compute": {"keep": ["convolve"]},
    "--part a names sin, which is of no node": {"given": {"a": ["sin"]}},
    "--part b names add_1, which is of two parts": {"given": {"a": ["add_1"], "b": ["add_1"]}},
    "--part a: reads what is computed from its own results": {"given": {"a": ["relu", "add_1"]}},
    "--part cut: a part's name": {"given": {"cut": ["relu"]}},
}


@pytest.mark.parametrize("why", MISFITS)
def test_what_cannot_be_asked_for_is_said(tmp_path: Path, why: str) -> None:
    with pytest.raises(InputError, match=why):
        proposed(write(tmp_path, **BLOCK), **MISFITS[why])


def test_a_part_that_computes_something_else_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuner.extensions.draft.problems import cutting

    def write_wrongly(*given: Any, **named: Any) -> str:
        return cutting_text(*given, **named).replace(".relu.default", ".sigmoid.default")

    cutting_text = cutting.part_text
    monkeypatch.setattr(cutting, "part_text", write_wrongly)
    with pytest.raises(InputError, match=r"results: part relu differs by \S+ where numbers go to"):
        proposed(write(tmp_path, "return self.fc(x).relu()", init=FC))


def test_the_command_shows_writes_and_overwrites_nothing(tune: Tune, tmp_path: Path) -> None:
    path, to = write(tmp_path, **BLOCK), tmp_path / "parts"
    result = tune("cut", path, "--to", to)
    assert result.exit_code == 0, result.output
    said = result.stdout.splitlines()
    assert said[1].split()[:2] == ["conv2d", "PyTorch"]
    assert said[2].split()[:2] == ["bias_batch_norm_relu", "kernel"]
    assert "the bias of conv2d is added by bias_batch_norm_relu" in said
    assert "the cut gives what the problem gives: 3 draws of its own sizes" in said
    assert said[-1].startswith("then: tune ")
    assert {one.name for one in to.iterdir()} == {
        "bias_batch_norm_relu.py",
        "mul_add_max_pool2d.py",
        "cut.py",
    }
    again = ("cut", path, "--to", to, "--part", "tail=add_1,max_pool2d", "--json")
    refused = tune(*again)
    assert refused.exit_code == 2
    assert "cut.py: is there already" in refused.output.replace("\n", "")
    found = json.loads(tune(*again, "--force").stdout)
    assert [one["name"] for one in found["steps"] if one["problem"]][-1] == "tail"


def test_the_page_s_example_is_what_the_command_prints(tune: Tune, tmp_path: Path) -> None:
    page = Path(__file__).parents[5] / "docs/references.md"
    shell, text, printed = re.findall(
        r"^```\w*\n(.*?)^```$",
        page.read_text("utf-8").partition("## A problem that is cut")[2],
        re.DOTALL | re.MULTILINE,
    )[:3]
    path = tmp_path / "mix.py"
    path.write_text(text)
    said = tune("cut", path, "--to", tmp_path / "mix", "--gpu", "H200").stdout
    assert said.startswith(printed)
    for line in shell.splitlines()[1:2]:
        assert (tmp_path / line.split()[1]).is_file()
