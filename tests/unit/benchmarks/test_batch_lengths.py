"""benchmarks/batch_lengths.py: workloads of decode attention from a file of lengths."""

from __future__ import annotations

import re
from pathlib import Path

import batch_lengths
import pytest
from shipped_kernels import ShippedKernel

from tuner.model.kernel import Workload

RAGGED = "90 70 50 30\n\n1000,10,10,10\n400 400 400\n"


def printed(capsys: pytest.CaptureFixture[str], *given: str) -> str:
    batch_lengths.main(given)
    return capsys.readouterr().out


def test_a_batch_a_line_is_a_workload_spread_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text(RAGGED)
    said = printed(capsys, str(path))
    before, after = said.split("LENGTHS=one_long")
    assert "B=4,L=90,S=240,H=8" in before
    assert "B=3,L=400,S=1200,H=8" in before
    assert "B=4,L=1000,S=1030,H=8" in after
    spec = ShippedKernel("decode_attention").spec
    for text in re.findall(r"--workload (\S+)", said):
        axes = {name: int(size) for name, size in (one.split("=") for one in text.split(","))}
        assert set(axes) == set(spec.axes)
        assert spec.footprint_bytes(Workload.of(axes)) > 0


def test_a_column_s_rows_are_batches_in_their_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.csv"
    rows = [f"{second},{100 + second}" for second in range(10)]
    path.write_text("\n".join(["time,tokens", *rows]))
    said = printed(capsys, str(path), "--column", "tokens", "--batch", "4", "--sizes", "W=200,P=1")
    assert re.findall(r"B=\S+", said) == ["B=4,L=103,S=406,W=200,P=1", "B=4,L=107,S=422,W=200,P=1"]


def test_of_many_batches_some_are_taken_from_the_fewest_tokens_to_the_most(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("".join(f"{n} {n}\n" for n in [5, *range(1, 101), 5]))
    said = printed(capsys, str(path), "--most", "3")
    assert re.findall(r"L=(\d+)", said) == ["1", "51", "100"]


@pytest.mark.parametrize(
    ("text", "given", "why"),
    [
        ("12 0\n", (), ":1: '0' is no length; write whole numbers"),
        ("12\n1.5\n", (), ":2: '1.5' is no length"),
        ("a,b\n1,2\n1\n", ("--column", "b"), ":3: None is no length"),
        ("a,b\n1,2\n", ("--column", "c"), "no column 'c'; --column takes one of a, b"),
        ("\n", (), "no lengths; write those of a batch in a line"),
    ],
)
def test_what_is_no_length_is_said_with_its_line(
    tmp_path: Path, text: str, given: tuple[str, ...], why: str
) -> None:
    path = tmp_path / "lengths"
    path.write_text(text)
    with pytest.raises(SystemExit, match=re.escape(why)):
        batch_lengths.main((str(path), *given))


def test_a_sequence_longer_than_its_pages_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("12000 10\n")
    with pytest.raises(SystemExit):
        batch_lengths.main((str(path),))
    assert "12,000 tokens, and 8196 pages of 1 hold 8,196: give --sizes" in capsys.readouterr().err
    assert "L=12000" in printed(capsys, str(path), "--sizes", "H=8,G=4,D=128,P=1,W=12000")
