"""What a file may say of an operator's neighbours, and what each mistake is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tuner.model.errors import InputError, KernelError, SpaceError
from tuner.model.kernel import KernelSpec, Workload
from tuner.space.load import load_definition
from tuner.space.surroundings import check_sizes, choose_surroundings

PAGE = Path(__file__).parents[3] / "docs" / "search-spaces.md"
COMPLETE = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
LINE = len(COMPLETE.splitlines()) + 5


@pytest.fixture
def load(tmp_path: Path):
    """Read a space with one neighbour before the operator and one after it, on T 1 and K 4096."""
    for name in ("scale_rows.cu", "scale_rows.py", "scale_rows.cu.j2"):
        (tmp_path / name).write_text("")

    def load(
        before: str = "{stream: 65536, writes: x}",
        after: str = "{stream: 8, reads: y}",
        name: str = "decode",
        complete: str = COMPLETE,
    ) -> KernelSpec:
        text = f"surroundings:\n  {name}:\n    chain:\n      - before:\n          - {before}\n"
        text += f"        after: [{after}]\n"
        (tmp_path / "space.yaml").write_text(complete + text, encoding="utf-8")
        return load_definition(tmp_path / "space.yaml").spec

    return load


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("{stream: 8, writes: z}", ["`z` is no array that the operator reads", "x, scale"]),
        ("{stream: 8, writes: y}", ["`y` is no array that the operator reads"]),
        ("{stream: 8, writes: K}", ["`K` is no array"]),
        ("{stream: 8, reads: x}", ["`reads` has no meaning before", "`writes`"]),
        ("{gemm: [T, 1, 8], writes: scale}", ["bfloat16", "`scale` is float32", "`stream`"]),
        ("{gemm: [T, K, K]}", ["does not say what it writes", "`writes: ARGUMENT`"]),
        ("{gemm: [T, K, K], writes: x, pdl: true}", ["`pdl` is for a `stream`"]),
        ("{stream: 8, gemm: [T, K, K]}", ["gemm and stream"]),
        ("{writes: x}", ["none of gemm, stream, function"]),
        ("{stream: 8 * Q}", ["Q"]),
        ("{gemm: [T, K], writes: x}", ["gemm"]),
    ],
)
def test_a_wrong_neighbour_is_told_with_its_line(load, before: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        load(before)
    assert all(word in str(caught.value) for word in words), caught.value
    assert caught.value.line == LINE


def test_a_neighbour_cannot_write_what_is_constant(load) -> None:
    held = COMPLETE.replace("shape: [T], role: input", "shape: [T], constant: true, role: input")
    assert held != COMPLETE
    with pytest.raises(SpaceError, match="`scale` is `constant`, and this neighbour writes it"):
        load("{stream: 8, writes: scale}", complete=held)


def test_what_runs_after_cannot_write(load) -> None:
    with pytest.raises(SpaceError, match="`writes` has no meaning after the operator"):
        load(after="{stream: 8, writes: y}")


@pytest.mark.parametrize("name", ["alone", "auto"])
def test_the_names_of_the_option_are_taken(load, name: str) -> None:
    with pytest.raises(SpaceError, match="choose another name"):
        load(name=name)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("{gemm: [T, 2 * K, K], writes: x}", "{stream: 8}", ["1 x 8192 numbers", "1 x 4096"]),
        ("{gemm: [T, K, 12], writes: x}", "{stream: 8}", ["multiples of 8, not 4096 and 12"]),
        ("{stream: T - 1}", "{stream: 8}", ["a neighbour's size is 0"]),
        ("{stream: 65536, writes: x}", "{gemm: [T, 8, 2 * K], reads: y}", ["reads 1 x 8192"]),
        ("{stream: 64}", "{stream: 8, reads: y}", ["reads 8192 bytes", "find 64 of them"]),
    ],
)
def test_sizes_that_do_not_fit_are_told_with_workload_and_line(load, before, after, words) -> None:
    with pytest.raises(KernelError) as caught:
        load(before, after)
    assert all(word in str(caught.value) for word in (*words, "T=1 K=4096")), caught.value
    assert caught.value.path.name == "space.yaml"
    assert caught.value.line in (LINE, LINE + 1)
    assert "`when`" in str(caught.value)


def test_a_product_of_more_rows_than_the_identity_has_is_refused(load) -> None:
    with pytest.raises(KernelError, match="1024 rows must have K of at least as much, not 8"):
        load("{gemm: [T, K, 8], writes: x}", "{stream: 8}")


def test_a_workload_given_by_hand_is_checked_too(load) -> None:
    spec = load("{gemm: [T, K, 1024], writes: x}", "{stream: 8}")
    check_sizes(spec, spec.tuned[1])
    with pytest.raises(KernelError, match="2048 rows"):
        check_sizes(spec, Workload.of({"T": 2048, "K": 4096}))


def test_the_option_chooses_by_workload_none_or_by_name(load) -> None:
    spec = load()
    one, many = spec.tuned
    assert choose_surroundings(spec, "auto") is spec
    assert choose_surroundings(spec, "alone").surroundings_of(one) is None
    assert choose_surroundings(spec, "decode").surroundings_of(many).name == "decode"
    with pytest.raises(KernelError) as caught:
        choose_surroundings(spec, "prefill")
    assert "--surroundings takes auto, alone, decode" in str(caught.value)
