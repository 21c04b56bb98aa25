"""Drafts from files of Triton and Helion as people write them."""

from __future__ import annotations

import re
from pathlib import Path
from shutil import copy
from typing import Any

import pytest

from tuner.extensions.draft.guesses import SURE
from tuner.extensions.draft.python.configs import Tunable, _choose_suggestions
from tuner.extensions.draft.python.drafting import draft_python
from tuner.extensions.draft.space import Drafted
from tuner.model.errors import KernelError, SpaceError
from tuner.space.schema import MOST_SUGGESTIONS
from tuner.space.yaml import read

DATA = Path(__file__).parent / "data"
PAGE = Path(__file__).parents[5] / "docs" / "drafts.md"
HEAD = "import torch, triton\nimport triton.language as tl\n"
KERNEL = """
@triton.jit
def scale(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)
"""
LAUNCH = """
def scaled(x: torch.Tensor):
    n = x.numel()
    scale[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, n{})
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def drafted(name: str) -> tuple[Drafted, Any, str]:
    copy(DATA / f"{name}.py", ".")
    made = draft_python(Path(f"{name}.py"))
    assert made.space is not None
    return made, read(made.space).data, made.space.read_text()


def written(text: str) -> tuple[Drafted, Any, str]:
    Path("own.py").write_text(HEAD + text)
    made = draft_python(Path("own.py"))
    assert made.space is not None
    return made, read(made.space).data, made.space.read_text()


def shapes(data: Any) -> dict[str, list[str]]:
    return {one["name"]: one["shape"] for one in data["arguments"]}


def test_a_signature_gives_powers_of_two_around_what_the_launch_passes(folder: Path) -> None:
    made, data, text = drafted("vector_add")
    assert [str(path) for path in made.written] == [
        "search_spaces/vector_add.yaml",
        "vector_add_tune.py",
    ]
    assert data["source"] == data["reference"] == "../vector_add_tune.py"
    assert not {"template", "launch", "baseline"} & {*data}
    assert data["parameters"]["BLOCK_SIZE"] == [256, 512, 1024, 2048, 4096]
    assert data["default"] == {"BLOCK_SIZE": 1024, "num_warps": 4}
    assert "# guessed: tl.constexpr; powers of two around 1024, line 23" in text
    assert "# num_stages: there is no loop whose loads Triton could pipeline" in text
    assert data["workloads"]["tuned"] == [{"length": 70001}]
    assert shapes(data) == {name: ["length"] for name in ("x", "y", "output")}
    assert [one["role"] for one in data["arguments"]] == ["input", "input", "output"]
    (blank,) = made.blanks
    assert blank.file == Path("vector_add_tune.py")
    assert "fill in reference()" in blank.file.read_text().splitlines()[blank.line - 1]


def test_the_configs_of_an_autotuner_are_the_space_and_its_suggestions(folder: Path) -> None:
    _, data, text = drafted("power_mix")
    found = data["parameters"]
    assert (found["TILE_POTS"], found["TILE_BOWLS"]) == ([32, 64], [32, 64])
    assert (found["num_warps"], found["num_stages"]) == ([4, 8], [3, 4])
    assert "TILE_POTS: [32, 64]  # sure: triton.autotune, line 14" in text
    assert "values around 32, the only one of triton.autotune, line 14" in text
    assert min(found["TILE_SPOONS"]) == 16  # no side of a product on tensor cores is less
    assert len(data["suggestions"]) == 5
    assert "# triton.autotune's key: R, D, S, line 34" in text
    assert shapes(data) == {"doses": ["R", "S"], "tastes": ["S", "D"], "dishes": ["R", "D"]}
    assert {one["dtype"] for one in data["arguments"]} == {"float16"}
    sizes = [one["R"] for one in data["workloads"]["tuned"]]
    assert sizes == [256, 2176, 4096]  # the first, the middle and the last of a benchmark


def test_of_a_long_list_of_configs_some_from_everywhere_are_suggested() -> None:
    values = tuple(range(10))
    tunables = [Tunable(name, values, 0, SURE, "") for name in ("a", "b")]
    every = [{"a": a, "b": b} for a in values for b in values][1:]
    assert not _choose_suggestions(tunables, every)  # all that there are
    some = [one for one in every if one != {"a": 5, "b": 5}]
    assert {one["a"] for one in _choose_suggestions(tunables, some)} == {*values}
    assert len(_choose_suggestions(tunables, some)) == MOST_SUGGESTIONS
    assert _choose_suggestions(tunables, some[:3]) == tuple(some[:3])


def test_what_a_config_does_not_say_is_what_triton_takes_and_not_what_the_first_says(
    folder: Path,
) -> None:
    _, data, text = written(
        """
@triton.autotune([
    triton.Config({"BLOCK": 64}, num_stages=2, num_warps=8, num_ctas=2),
    triton.Config({"BLOCK": 128}),
    triton.Config({"BLOCK": 256}, num_warps=2),
], key=["n"])"""
        + KERNEL
        + LAUNCH.format("")
    )
    found = data["parameters"]
    assert (found["num_stages"], found["num_warps"]) == ([2, 3], [2, 4, 8])
    assert found["num_ctas"] == [1, 2]
    assert data["default"] == {"BLOCK": 64, "num_stages": 2, "num_warps": 8, "num_ctas": 2}
    assert data["suggestions"] == [
        {"BLOCK": 128, "num_stages": 3, "num_warps": 4, "num_ctas": 1},
        {"BLOCK": 256, "num_stages": 3, "num_warps": 2, "num_ctas": 1},
    ]
    assert "# the first config of the file" in text


def test_the_first_config_is_the_default_with_what_triton_takes_where_only_others_say_it(
    folder: Path,
) -> None:
    _, data, _ = written(
        """
@triton.autotune([
    triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128}, num_stages=5),
], key=["n"])"""
        + KERNEL
        + LAUNCH.format("")
    )
    assert data["default"] == {"BLOCK": 64, "num_stages": 3, "num_warps": 4}
    assert data["parameters"]["num_stages"] == [3, 5]
    assert data["suggestions"] == [{"BLOCK": 128, "num_stages": 5}]


PARTLY = """
@triton.autotune([
    triton.Config({"BLOCK": 64, "SPLIT": 8}, maxnreg=128), triton.Config({"BLOCK": 128}),
], key=["n"])
@triton.jit
def scale(x_ptr, n, BLOCK: tl.constexpr, SPLIT: tl.constexpr%s):
    at = tl.program_id(0) * BLOCK * SPLIT + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)
"""


def test_what_only_some_configs_say_is_the_kernels_default_in_the_others(folder: Path) -> None:
    _, data, text = written(PARTLY % "=2" + LAUNCH.format(""))
    assert data["parameters"]["SPLIT"] == [2, 8]
    assert data["default"]["SPLIT"] == 8
    assert {"BLOCK": 128, "SPLIT": 2} in data["suggestions"]
    # Triton bounds registers there only where a config does.
    assert (
        "# maxnreg: only some configs have it, and what the others do is no number or text" in text
    )


def test_a_config_that_lacks_what_the_kernel_needs_is_not_suggested(folder: Path) -> None:
    _, data, text = written(PARTLY % "" + LAUNCH.format(""))
    assert 8 in data["parameters"]["SPLIT"]
    assert data["default"]["SPLIT"] == 8
    assert "suggestions" not in data
    assert "# SPLIT:" not in text


def test_a_default_that_is_no_value_leaves_what_some_configs_say_out(folder: Path) -> None:
    _, data, text = written(PARTLY % "=None" + LAUNCH.format(""))
    assert "SPLIT" not in data["parameters"]
    assert "# SPLIT: only some configs have it, and what the others do is no number or text" in text


def test_the_value_that_is_none_is_the_one_that_is_named(folder: Path) -> None:
    _, _, text = written(PARTLY.replace("128}", '128, "SPLIT": None}') % "" + LAUNCH.format(""))
    assert "# SPLIT: None is no number, text or boolean; line" in text


def test_a_config_handed_over_as_a_dict_is_found_where_it_is_written(folder: Path) -> None:
    _, data, text = drafted("patch_distance")
    assert data["default"] == {
        **{"BLOCK_P": 64, "BLOCK_Q": 64, "BLOCK_R": 64, "GROUP_TURN": 32},
        **{"num_warps": 4, "num_stages": 2},
    }
    assert "# the source as it is; guessed: BLOCK_Q, BLOCK_R" in text
    assert shapes(data) == {
        "Left": ["P", "R"],
        "Right": ["Q", "R"],
        "Trust": ["P", "ceil_div(R, 64)"],
        "Doubt": ["ceil_div(Q, 64)", "ceil_div(R, 64)"],
        "Far": ["P", "Q"],
    }


def test_an_autotuner_over_warps_alone_leaves_the_chunk_alone(folder: Path) -> None:
    _, data, text = drafted("worn_steps")
    assert data["parameters"] == {"num_warps": [1, 2, 4, 8]}
    assert "# BS: the launch passes it, and no config of triton.autotune has it" in text
    assert "# HAS_POLISH: triton.heuristics computes it, line 12" in text
    assert [one["dtype"] for one in data["arguments"]] == ["bfloat16", "float32"]


def test_a_config_of_helion_gives_each_block_a_parameter(folder: Path) -> None:
    made, data, text = drafted("helion_passes")
    assert made.parameters[:3] == ("block_sizes_0", "block_sizes_1", "block_sizes_2")
    assert data["default"]["block_sizes_1"] == 32
    assert "# loop_orders: stays [[1, 0]], line 10" in text
    assert shapes(data) == {
        "climbs": ["valleys", "ridges"],
        "falls": ["ridges", "coasts"],
        "heights": ["valleys", "coasts"],
    }
    assert data["workloads"]["tuned"] == [{"valleys": 512, "ridges": 1024, "coasts": 256}]


def of_helion(*configs: str) -> tuple[Any, str, str]:
    made, data, text = written(
        f"import helion\n@helion.kernel(configs=[{', '.join(configs)}])\n"
        "def copied(x: torch.Tensor):\n    out = torch.empty_like(x)\n    return out\n"
    )
    return data, text, made.written[1].read_text()


def test_what_a_config_does_not_say_is_what_helion_takes(folder: Path) -> None:
    data, text, module = of_helion(
        "helion.Config(block_sizes=[32])",
        "helion.Config(block_sizes=[64], num_stages=3, num_warps=8, l2_groupings=[4],"
        " num_threads=[32], pid_type='persistent_blocked', reduction_loops=[1024])",
        "helion.Config(block_sizes=[32], num_warps=2)",
    )
    own = {"num_stages": 1, "num_warps": 4, "l2_groupings_0": 1, "num_threads_0": 0}
    assert data["default"] == {"block_sizes_0": 32, **own, "pid_type": "flat"}
    assert "# the source as it is\n" in text
    assert data["parameters"]["num_threads_0"] == [0, 32]
    for name, value in data["default"].items():
        assert value in data["parameters"][name]
    second, third = data["suggestions"]
    assert (second["num_stages"], second["num_threads_0"], second["l2_groupings_0"]) == (3, 32, 4)
    assert third == {**data["default"], "num_warps": 2}
    assert "# reduction_loops: stays [None]" in text
    assert "reduction_loops=[None]" in module


def test_what_only_other_configs_say_is_left_to_helion_or_guessed(folder: Path) -> None:
    data, text, module = of_helion(
        "helion.Config(num_warps=8)",
        "helion.Config(block_sizes=[64], loop_orders=[[1, 0]])",
        "helion.Config(num_warps=2)",
    )
    assert data["default"] == {"num_warps": 8, "block_sizes_0": 64, "num_stages": 1}
    assert "# the source as it is; guessed: block_sizes_0" in text
    assert "# loop_orders: stays Helion's own, as in the first config" in text
    assert "loop_orders" not in module
    # the third leaves its block sizes to Helion, so no suggestion is what it is
    assert data["suggestions"] == [{"num_warps": 4, "block_sizes_0": 64}]


def test_indices_are_drawn_below_what_they_point_into(folder: Path) -> None:
    _, data, _ = written("""
@triton.jit
def rows(table, ids, out, d, stride, BLOCK: tl.constexpr):
    row = tl.load(ids + tl.program_id(0))
    at = tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0) * d + at, tl.load(table + row * stride + at))

def gather(table: torch.Tensor, ids: torch.Tensor):
    n, = ids.shape
    d = table.shape[1]
    out = torch.empty((n, d), dtype=table.dtype)
    rows[(n,)](table, ids, out, d, table.stride(0), BLOCK=triton.next_power_of_2(d), num_warps=2)
    return out
""")
    ids = data["arguments"][1]
    assert (ids["dtype"], ids["fill"]) == ("int64", "indices(table_0)")
    assert data["default"] == {"num_warps": 2}


def test_what_the_autotuner_does_besides_is_said_to_be_kept_or_ignored(folder: Path) -> None:
    made, data, text = written(
        """
def hook(nargs):
    nargs["x_ptr"].zero_()

@triton.autotune(
    configs=[triton.Config({"BLOCK": b}, pre_hook=hook) for b in (64, 128)],
    key=["n"],
    prune_configs_by={"early_config_prune": lambda configs, args: configs},
    restore_value=["x_ptr"],
)"""
        + KERNEL
        + LAUNCH.format("")
    )
    told = "\n".join(made.notes)
    assert "pre_hook hook (line 8) is kept" in told
    assert "prune_configs_by (line 10) is not read" in told
    assert "restore_value=['x_ptr'] (line 11) is ignored" in told
    assert data["arguments"][0]["role"] == "inout"
    assert "restore_value, line 11" in text


@pytest.mark.parametrize(
    ("made", "n"), [("4096", 4096), ("4096, 512", 4096 * 512), ("(2, 8, 64)", 1024)]
)
def test_the_elements_of_several_dimensions_are_counted_together(
    folder: Path, made: str, n: int
) -> None:
    call = f"scaled(torch.randn({made}, device='cuda'))\n"
    _, data, _ = written(KERNEL + LAUNCH.format(", BLOCK=128") + call)
    assert data["workloads"]["tuned"] == [{"n": n}]


def test_a_module_that_is_there_is_kept_and_a_space_is_not_overwritten(folder: Path) -> None:
    drafted("vector_add")
    module = Path("vector_add_tune.py")
    module.write_text("mine")
    with pytest.raises(SpaceError, match="exists already"):
        draft_python(Path("vector_add.py"))
    made = draft_python(Path("vector_add.py"), force=True)
    assert made.kept == (module,)
    assert module.read_text() == "mine"


def test_two_kernels_are_listed_and_one_may_be_chosen(folder: Path) -> None:
    second = (KERNEL + LAUNCH).replace("scale", "other").format("")
    text = HEAD + (KERNEL + LAUNCH).replace("{}", ", BLOCK=64") + second
    path = Path("two.py")
    path.write_text(text)
    with pytest.raises(KernelError) as told:
        draft_python(path)
    assert "two.py:14: has 2 kernels: scale, other\n  choose one, such as --kernel scale" in str(
        told.value
    )
    assert draft_python(path, kernels=["scale"]).space == Path("search_spaces/two.yaml")
    made = draft_python(path, kernels=["other"])
    assert made.space == Path("search_spaces/two_other.yaml")
    assert made.written[1] == Path("two_other_tune.py")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1\n", "own.py: holds neither a kernel of Triton (@triton.jit) or Helion"),
        ("def launch(config, tensors, axes): ...\n",
         "own.py:3: defines `launch`, and nothing in it says arguments, sizes and choices to "
         "draft\n  write search_spaces/own.yaml for it; docs/callables.md has one to copy"),
        ("def f(:\n", "own.py:3: is not Python"),
        (KERNEL, "own.py:5: nothing launches scale here"),
        (KERNEL + "scale[(1,)](torch.ones(4), 4, BLOCK=4)\n", ":8: scale is launched outside of"),
        (KERNEL + "class M:\n    def forward(self, x):\n        scale[(1,)](x, 4, BLOCK=4)\n",
         "own.py:10: scale is launched in a method, M.forward"),
        ("@triton.autotune(configs=from_file('c.json'), key=[])" + KERNEL + LAUNCH.format(""),
         "own.py:3: the configs of scale cannot be read without running `from_file('c.json')`"),
        ("@triton.autotune(configs=[64, 128], key=[])" + KERNEL + LAUNCH.format(""),
         "own.py:3: the configs of scale are no list of triton.Config: `[64, 128]`"),
        ("@wrapped\n@triton.autotune(configs=[triton.Config({'BLOCK': 64})], key=[])" + KERNEL
         + LAUNCH.format(""), "own.py:3: what `@wrapped` makes of scale is not known"),
        (KERNEL + "def f(x: torch.Tensor):\n    n = 128\n    "
         "scale[(64, 64)](x, n, BLOCK=64, num_warps=64)\n",
         "own.py:10: the grid's 64 may be BLOCK or num_warps"),
        ("import helion\n@helion.kernel()\ndef f(x: torch.Tensor):\n    return x\n",
         "own.py:4: f names no config of its own"),
    ],
)  # fmt: skip
def test_what_cannot_be_drafted_is_one_sentence_with_its_line(
    folder: Path, text: str, told: str
) -> None:
    with pytest.raises(KernelError) as refused:
        written(text)
    assert told in str(refused.value)
    assert not Path("search_spaces").exists()


def test_the_page_shows_what_is_drafted(folder: Path) -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Triton and Helion")[2]
    source, launch = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[:2]
    (space,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)[:1]
    Path("scale.py").write_text(source)
    made = draft_python(Path("scale.py"))
    files = [path.read_text().splitlines() for path in made.written]
    assert [row for row in space.splitlines() if row not in files[0]] == []
    assert [row for row in launch.splitlines() if row not in files[1]] == []


def test_a_space_is_reread_with_no_mistake_but_what_callables_leave_out(folder: Path) -> None:
    for path in sorted(DATA.glob("*.py")):
        _, data, _ = drafted(path.stem)
        names = {one["name"] for one in data["arguments"] if one["role"] == "output"}
        assert names == {*data["tolerance"]}
        assert {*data["default"]} == {*data["parameters"]}
        for name, value in data["default"].items():
            assert value in data["parameters"][name]
        for one in data.get("suggestions", ()):
            assert all(value in data["parameters"][name] for name, value in one.items())


def test_a_config_that_only_a_caller_knows_is_guessed_and_optional_arrays_are_none(
    folder: Path,
) -> None:
    made, data, text = written(
        KERNEL
        + """
def scaled(x: torch.Tensor, bias: Optional[torch.Tensor], fast: bool, config: dict):
    n = x.numel()
    if bias is None and not fast:
        scale[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, n, **config)
    return x[:n]
"""
    )
    assert data["default"] == {"BLOCK": 64, "num_warps": 4}
    assert "# the source as it is; guessed: BLOCK" in text
    assert [one["name"] for one in data["arguments"]] == ["x"]
    module = made.written[1].read_text()
    assert "bias = None  # guessed: it may be None, line 9" in module
    assert 'config_ = {"BLOCK": 64, "num_warps": 4, **chosen}  # guessed' in module
    assert module.count("return {") == 1  # the reference's: what comes back was written in place


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("first", "line"),
    [
        ("a0 = n", "a{now} = a{before} + a{before}"),
        ("a0 = n", "a{now} = triton.cdiv(a{before}, a{before})"),
        ("a0 = x", "a{now} = torch.empty(a{before}.shape + a{before}.shape)"),
    ],
    ids=["sums", "quotients", "shapes"],
)
@pytest.mark.usefixtures("folder")
def test_sizes_that_double_at_each_line_are_left_open(first: str, line: str) -> None:
    lines = [first, *(line.format(now=k, before=k - 1) for k in range(1, 60))]
    lines.append("y = torch.empty(a59)")
    text = KERNEL + LAUNCH.format("").replace(
        "    scale[", "".join(f"    {one}\n" for one in lines) + "    scale["
    )
    made, data, _ = written(text)
    assert shapes(data)["x"] == ["n"]
    assert made.space.stat().st_size < 10_000
