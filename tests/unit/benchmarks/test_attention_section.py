"""The page's part on what keeps decode attention from its floor."""

from __future__ import annotations

import json

import attention_section
from attention_section import ROOT, Parts


def test_shares_add_up_and_a_tail_is_no_more_than_what_is_left() -> None:
    parts = Parts(10.0, 8.0, 0.5, 0.75, 1)
    assert str(parts) == "10.00 | 80.0% | 5.0% | 15.0% | 7.5% | 0.0%"
    split = Parts(10.0, 8.0, 0.5, 4.0, 8)
    assert str(split) == "10.00 | 80.0% | 5.0% | 15.0% | 15.0% | in what is left, of 8 parts"


def test_each_winner_s_time_is_divided_by_its_own_launch() -> None:
    path = ROOT / "benchmarks/results/h200/decode_attention.json"
    result = json.loads(path.read_text(encoding="utf-8"))
    text = "\n".join(attention_section.section(result, "h200"))
    # 64 sequences of 1,024 tokens: 268 MB at 4,261 GB/s, by 512 blocks on 132 multiprocessors.
    case = next(case for case in result["workloads"] if case["axes"]["B"] == 64)
    moved = 4.0 * 65536 * 8 * 128 + 4 * 64 * 8 * 4 * 128
    us = case["programs"][case["winner"]]["us"]
    streaming = moved / (float(result["environment"]["streaming_gbps"]) * 1e3)
    tail = streaming * (4 * 132 / 512 - 1)
    row = next(line for line in text.splitlines() if line.startswith("| B=64,"))
    assert f"| {us:.2f} | {streaming / us:.1%} |" in row
    assert f"| {tail / us:.1%} | 0.0% |" in row


def test_without_the_least_that_a_launch_takes_nothing_is_said() -> None:
    assert list(attention_section.section({}, "another-gpu")) == []
