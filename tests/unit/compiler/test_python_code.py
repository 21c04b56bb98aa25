"""What of a kernel in Python its recordings are keyed by."""

from __future__ import annotations

import pytest

from tuner.compiler.base import source_key
from tuner.compiler.python_code import extract_launch_code
from tuner.model.kernel import PYTHON_OPTION

MODULE = '''"""A kernel."""

import math
import numpy
from functools import cache

WIDTH = 128
SPREAD = 4.5  # of the inputs
SCALE = math.sqrt(WIDTH)


@cache
def engine():
    """Import it."""
    import torch  # once

    return torch


def launch(config, tensors, axes):
    # Enqueue it.
    return double(engine(), tensors, WIDTH)


def double(torch, tensors, width):
    text = """
      two

      lines  # no comment
    """
    return torch.mul(tensors["x"], 2, text, width)


def reference(xp, inputs, axes):
    return {"y": xp.asarray(numpy.float64(2) * inputs["x"] * SPREAD)}


if __name__ == "__main__":
    print(reference)
CONFIG = {'block': 64}
AXES = {'N': 4}
OPERATORS = {}
'''
REACHED = '''import math
import numpy
from functools import cache
WIDTH = 128
SCALE = math.sqrt(WIDTH)
@cache
def engine():
    import torch
    return torch
def launch(config, tensors, axes):
    return double(engine(), tensors, WIDTH)
def double(torch, tensors, width):
    text = """
      two

      lines  # no comment
    """
    return torch.mul(tensors["x"], 2, text, width)
CONFIG = {'block': 64}
AXES = {'N': 4}
OPERATORS = {}
'''


def key(source: str) -> str:
    return source_key(source, (PYTHON_OPTION,), "sm_90a")


def test_it_is_what_launch_reaches_without_comments_and_docstrings() -> None:
    assert extract_launch_code(MODULE) == REACHED


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("SPREAD = 4.5", "SPREAD = 5.5"),
        ("numpy.float64(2)", "numpy.float32(3)"),
        ('"""Import it."""', '"""Import what is needed, once a process."""'),
        ("    # Enqueue it.\n", ""),
        ("import torch  # once", "import torch"),
        ("\n\ndef reference", "\n\n\n\ndef peers():\n    return {}\n\n\ndef reference"),
        ("    print(reference)", "    print(reference, launch)"),
    ],
)
def test_no_other_change_makes_it_another_kernel(before: str, after: str) -> None:
    assert before in MODULE
    assert key(MODULE.replace(before, after)) == key(MODULE)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("WIDTH = 128", "WIDTH = 64"),
        ("{'block': 64}", "{'block': 32}"),
        ("{'N': 4}", "{'N': 8}"),
        ("@cache\n", ""),
        ('tensors["x"], 2', 'tensors["x"], 3'),
        ("two\n\n", "two\n"),
        ("lines  # no comment", "lines  # a comment"),
        # What is run for more than a name, whatever it may do.
        ("math.sqrt(WIDTH)", "math.sqrt(2 * WIDTH)"),
        ("import numpy\n", "import numpy\nimport patched_numpy\n"),
        ("WIDTH = 128", "WIDTH = 128\nglobal_state['x'] = 1"),
        ("WIDTH = 128", "WIDTH = 128\nif WIDTH:\n    SPREAD = 3"),
        ("def reference", "@library.custom_op('tune::double')\ndef reference"),
        ("def reference(xp,", "def reference(xp=patch(),"),
    ],
)
def test_what_launch_may_need_does(before: str, after: str) -> None:
    assert before in MODULE
    assert key(MODULE.replace(before, after)) != key(MODULE)


LAUNCH = "def launch(config, tensors, axes):\n    return WIDTH\n"


@pytest.mark.parametrize(
    "module",
    [
        "# \u2028\n" + LAUNCH.replace("WIDTH", "64"),
        "\f\ndef one():\n    pass\n\n\n" + LAUNCH.replace("WIDTH", "64"),
        'def one():\n    """a\x85b"""\n    pass\n\n\n' + LAUNCH.replace("WIDTH", "64"),
        "if __name__ != '__main__':\n    WIDTH = 64\n" + LAUNCH,
        "if __name__ == '__main__':\n    pass\nelse:\n    WIDTH = 64\n" + LAUNCH,
        "X = (WIDTH := 64)\n" + LAUNCH,
        "def one(x=(WIDTH := 64)): pass\n" + LAUNCH,
        "def one(x: set_width(64)): pass\n" + LAUNCH,
        "class One:\n    set_width(64)\n" + LAUNCH,
        "class One:\n    global WIDTH\n    WIDTH = 64\n" + LAUNCH,
        "class One(Registered):\n    width = 64\n" + LAUNCH,
        "import widths_of_64\n\n\ndef one():\n    widths_of_64.ask()\n\n\n" + LAUNCH,
        "WIDTH = 64\n" + LAUNCH.replace("WIDTH", "launch.__globals__['WID' 'TH']"),
        '"""64"""\n' + LAUNCH.replace("WIDTH", "int(__doc__)"),
        "from sys import modules as m\nWIDTH = 64\n" + LAUNCH.replace("WIDTH", "m['k'].WIDTH"),
        "def jit(f): known.append(f)\n\n\n@jit\ndef one(): return 64\n" + LAUNCH,
        "class One:\n    def __class_getitem__(cls, x):\n        set_width(64)\nX = One[1]\n"
        + LAUNCH,
    ],
)
def test_no_way_around_a_name_is_overlooked(module: str) -> None:
    assert "64" in module
    assert key(module) != key(module.replace("64", "32"))


def test_a_comment_inside_of_a_literal_in_parts_is_none_of_it() -> None:
    first = LAUNCH.replace("WIDTH", '(\n        "a"\n        "b"\n    )')
    assert key(first) == key(first.replace('"a"\n', '"a"\n        # and\n'))


@pytest.mark.parametrize(
    "changed",
    [
        MODULE.replace("engine(), tensors", "globals()['engine'](), tensors"),
        MODULE.replace("engine(), tensors", "sys.modules[__name__].engine(), tensors"),
        MODULE.replace("def double", "def 2"),
    ],
)
def test_where_that_cannot_be_told_it_is_all_of_the_text(changed: str) -> None:
    assert key(changed) != key(changed.replace("SPREAD = 4.5", "SPREAD = 5.5"))


def test_a_docstring_beside_code_is_left_where_it_is() -> None:
    source = 'def launch(config, tensors, axes): "one"; return tensors\nCONFIG = None\n'
    assert extract_launch_code(source) == source


def test_a_template_whose_code_differs_between_configs_is_read_each_time() -> None:
    sources = [MODULE.replace("2, text", f"{factor}, text") for factor in (2, 3, 2)]
    first, other, again = map(key, sources)
    assert first == again != other
