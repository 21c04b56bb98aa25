"""What Python text says without being run, and what it does not."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import dedent

import pytest

from tuner.extensions.draft.python.literals import Literals, Made, UnreadableError

SOURCE = dedent("""
    import itertools, os
    SIZES = [16 * 2**n for n in range(3)]
    BIG = SIZES if is_cuda() else []

    def pairs(limit, step=2):
        found = []
        for a, b in itertools.product(SIZES, repeat=step):
            if a * b > limit:
                continue_ = 1
            else:
                found.append((a, b))
        return found

    def endless():
        return endless()

    def of_machine():
        return [torch.cuda.get_device_capability()[0]]
    """)


def value(text: str) -> object:
    return Literals(ast.parse(SOURCE)).value(ast.parse(text, mode="eval").body)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SIZES", [16, 32, 64]),
        ("BIG", [16, 32, 64]),
        ("SIZES + [128] * 2", [16, 32, 64, 128, 128]),
        ("[a for a in SIZES if a > 16 and a != 64]", [32]),
        ("pairs(limit=512)", [(16, 16), (16, 32), (32, 16)]),
        ("[*SIZES, *range(2)]", [16, 32, 64, 0, 1]),
        ("{'a': 1, **{'b': 2}}", {"a": 1, "b": 2}),
        ("dict(zip('ab', SIZES))", {"a": 16, "b": 32}),
        ("4 if torch.version.hip else 8", 8),
        ("triton.next_power_of_2(100) // triton.cdiv(7, 2)", 32),
        ("[(w, s) for w in (4, 8) for s in sorted({3, 2})]", [(4, 2), (4, 3), (8, 2), (8, 3)]),
    ],
)
def test_literals_comprehensions_and_loops_are_read(text: str, expected: object) -> None:
    assert value(text) == expected


def test_a_config_is_read_as_the_call_that_it_is() -> None:
    (made,) = value("[triton.Config({'B': n}, num_warps=4, pre_hook=hook) for n in SIZES[:1]]")
    expected = Made("triton.Config", ({"B": 16},), {"num_warps": 4, "pre_hook": "hook"}, 1)
    assert made == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[n for n in os.environ]", "os.environ"),
        ("of_machine()", "torch.cuda.get_device_capability"),
        ("open('x')", "open('x')"),
        ("__import__('os')", "__import__('os')"),
        ("undefined + 1", "undefined"),
        ("[1][5]", "[1][5]"),
        ("1 // 0", "1 // 0"),
    ],
)
def test_what_only_running_it_could_tell_is_named(text: str, told: str) -> None:
    with pytest.raises(UnreadableError) as unread:
        value(text)
    assert told in unread.value.text


@pytest.mark.parametrize(
    "text",
    [
        "9**9**9",
        "1 << 10**9",
        "[0] * 10**9",
        "range(10**12)",
        "'x' * 10**9",
        "endless()",
        "[a for a in range(9999) for b in range(9999) for c in range(9999)]",
        "itertools.product(range(99), repeat=9)",
        "'%1000000000d' % 1",
        "+".join(["1"] * 500),
    ],
)
def test_text_that_would_take_all_memory_or_time_is_refused(text: str) -> None:
    with pytest.raises(UnreadableError):
        value(text)


def test_no_text_is_ever_run(tmp_path: Path) -> None:
    trap = f"(lambda: open({str(tmp_path / 'trap')!r}, 'w'))()"
    with pytest.raises(UnreadableError):
        value(trap)
    assert not [*tmp_path.iterdir()]
