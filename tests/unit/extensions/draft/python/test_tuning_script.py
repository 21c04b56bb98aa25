"""Scripts of Kernel Tuner beside a source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tuner.extensions.draft.drafting import Asked
from tuner.extensions.draft.python import tuning_script
from tuner.extensions.draft.python.tuning_script import read_tuning_script

SCRIPT = (
    "from collections import OrderedDict\nfrom kernel_tuner import tune_kernel\n\n"
    "def tune():\n    tune_params = OrderedDict()\n"
    '    tune_params["block_size_x"] = [32 * i for i in range(1, 4)]\n'
    '    tune_params["use_padding"] = [0, 1]\n    tune_params["how"] = ["a", "b"]\n'
    '    tune_kernel("k", "k.cu", 64, [], tune_params)\n'
)
VALUES = {"block_size_x": (32, 64, 96), "use_padding": (0, 1)}


@pytest.mark.parametrize(
    ("script", "found"),
    [
        (SCRIPT, VALUES),
        (SCRIPT.replace("k.cu", "other.cu"), {}),
        (SCRIPT.replace("tune_kernel", "call"), {}),
        (
            'from kernel_tuner import tune_kernel\ntune_params = {"n": list(range(2))}\n# k.cu',
            {"n": (0, 1)},
        ),
        ("tune_kernel('k.cu'", {}),
    ],
)
def test_whole_numbers_of_tune_params_are_read(
    script: str, found: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    (tmp_path / "tune_k.py").write_text(script)
    assert read_tuning_script(tmp_path / "k.cu").values == found


def test_only_what_nothing_in_the_source_declares_becomes_a_macro(tmp_path: Path) -> None:
    script = SCRIPT.replace("[0, 1]", "[True, False]").replace('"how"] = ["a", "b"]', '"n"] = [7]')
    (tmp_path / "tune_k.py").write_text(script)
    source = tmp_path / "k.cu"
    source.write_text(
        "template <int block_size_x> __global__ void k(float* x, int n) {\n"
        "  if (use_padding) x[block_size_x * n] = 0; }\n"
    )
    assert Asked().with_script(source).defined == ("use_padding=1",)


def test_a_sum_divides_as_a_whole(tmp_path: Path) -> None:
    script = SCRIPT.replace(
        "tune_params)\n", 'tune_params, grid_div_x=["block_size_x + 1", "use_padding", "2"])\n'
    )
    (tmp_path / "tune_k.py").write_text(script)
    divisors = read_tuning_script(tmp_path / "k.cu").divisors
    assert divisors == ("(block_size_x + 1) * use_padding * 2", None, None)


def test_a_restriction_that_cannot_be_computed_allows_nothing(tmp_path: Path) -> None:
    script = SCRIPT.replace(
        "tune_params)\n", 'tune_params, restrictions=["block_size_x % use_padding == 0"])\n'
    )
    (tmp_path / "tune_k.py").write_text(script)
    found = read_tuning_script(tmp_path / "k.cu").first_allowed(["block_size_x", "use_padding"])
    assert found == {"block_size_x": 32, "use_padding": 1}


def test_a_comment_declares_nothing(tmp_path: Path) -> None:
    (tmp_path / "tune_k.py").write_text(SCRIPT.replace('"how"] = ["a", "b"]', '"tile"] = [4, 1]'))
    source = tmp_path / "k.cu"
    source.write_text(
        "// A larger tile, where use_padding allows it.\n"
        "__global__ void k(float* x) { x[block_size_x * tile + use_padding] = 0; }\n"
    )
    defined = Asked().with_script(source).defined
    assert defined == ("block_size_x=32", "use_padding=0", "tile=4")


def test_a_restriction_that_names_a_number_of_the_script_has_the_number() -> None:
    script = (
        "LIMIT = 128\n"
        'restrict = [lambda p: p["block_size_x"] * p["tile"] <= LIMIT]\n'
        'tune_kernel("k", "k.cu", 10, [], {}, restrictions=restrict)\n'
    )
    restrictions, _, sizes = tuning_script._asked(ast.parse(script), {})
    assert restrictions == ("block_size_x * tile <= 128",)
    assert sizes == (10,)
