"""Workloads of decode attention for batches whose lengths a file has.

    python benchmarks/batch_lengths.py FILE                        (a batch a line: 812 95 1300)
    python benchmarks/batch_lengths.py TRACE.csv --column ContextTokens --batch 64

The second takes the column's rows in their order, so many to a batch. What is printed is a `tune`
for each way in which LENGTHS spreads tokens over sequences: a batch is a workload of the way that
is nearest to it, with its own number of sequences, longest one and sum. Of many batches some are
taken, from the one with the fewest tokens to the one with the most, and of equal ones the first:
each counts once in the mix whose time is judged.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from environment import ROOT

KERNEL = ROOT / "kernels/sglang/decode_attention.cu"
WAYS = ("uniform", "zipf", "one_long")


def spread_lengths(sequences: int, longest: int, tokens: int, way: str) -> Sequence[int]:
    """Spread tokens as the kernel's reference does."""
    spec = importlib.util.spec_from_file_location("reference", KERNEL.with_suffix(".py"))
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    lengths: Sequence[int] = module.spread_lengths(sequences, longest, tokens, way).tolist()
    return lengths


def read_batches(path: Path, column: str | None, batch: int) -> list[list[int]]:
    """Read a batch a line, or rows of a column in batches; end with what is wrong, and where."""
    with path.open(newline="", encoding="utf-8") as file:
        if column is None:
            lines = [line.replace(",", " ").split() for line in file]
            batches = [whole(path, n, texts) for n, texts in enumerate(lines, 1) if texts]
        else:
            rows = csv.DictReader(file)
            if column not in (rows.fieldnames or ()):
                there = ", ".join(rows.fieldnames or ())
                raise SystemExit(f"{path}: no column {column!r}; --column takes one of {there}")
            lengths = [whole(path, rows.line_num, [row[column]])[0] for row in rows]
            batches = [lengths[at : at + batch] for at in range(0, len(lengths), batch)]
            # The last may be smaller, as no step was.
            batches = batches if len(batches) == 1 else [b for b in batches if len(b) == batch]
    if not batches:
        raise SystemExit(f"{path}: no lengths; write those of a batch in a line: 812 95 1300")
    return batches


def whole(path: Path, line: int, texts: Iterable[str | None]) -> list[int]:
    lengths = []
    for text in texts:
        if text is None or not text.strip().isdecimal() or not 0 < int(text) < 1 << 31:
            remedy = "write whole numbers of tokens, 1 or more; --column for a file with a header"
            raise SystemExit(f"{path}:{line}: {text!r} is no length; {remedy}")
        lengths.append(int(text))
    return lengths


def some_of(batches: list[list[int]], most: int) -> list[list[int]]:
    """Take so many at even distances, ordered by their tokens; of equal ones the first."""
    kept = {(len(each), max(each), sum(each)): each for each in reversed(batches)}
    ordered = sorted(kept.values(), key=sum)
    if len(ordered) <= most:
        return ordered
    places = [round(n * (len(ordered) - 1) / max(1, most - 1)) for n in range(most)]
    return [ordered[place] for place in places]


def elsewhere(batch: list[int], way: str) -> float:
    """Say which share of a batch's tokens another sequence has when they are spread so."""
    found = sorted(spread_lengths(len(batch), max(batch), sum(batch), way))
    apart = (abs(a - b) for a, b in zip(found, sorted(batch), strict=True))
    return sum(apart) / 2 / sum(batch)


def commands(batches: list[list[int]], sizes: str) -> list[str]:
    """Write a `tune` for each way, with what the way leaves out."""
    ways = [min(WAYS, key=lambda way, batch=batch: elsewhere(batch, way)) for batch in batches]  # type: ignore[misc]
    lines = []
    for way in WAYS:
        taken = [batch for batch, its in zip(batches, ways, strict=True) if its == way]
        if not taken:
            continue
        far = max(elsewhere(batch, way) for batch in taken)
        lines += [f"# {way}: up to {far:.1%} of a batch's tokens are of another sequence"]
        lines += [f"tune {KERNEL.relative_to(ROOT)} --mix --operator LENGTHS={way} \\"]
        lines += [
            f"  --workload B={len(batch)},L={max(batch)},S={sum(batch)},{sizes} \\"
            for batch in taken
        ]
        lines[-1] = lines[-1].removesuffix(" \\")
    return lines


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--column", help="of a CSV file with a header")
    parser.add_argument("--batch", type=int, default=64, help="rows of the column to a batch")
    parser.add_argument("--most", type=int, default=8, help="workloads")
    parser.add_argument("--sizes", default="H=8,G=4,D=128,P=1,W=8196", help="the other axes")
    asked = parser.parse_args(given)
    if min(asked.batch, asked.most) < 1:
        parser.error("--batch and --most are 1 or more")
    batches = read_batches(asked.file, asked.column, asked.batch)
    sizes = dict(size.split("=") for size in asked.sizes.split(","))
    longest, room = max(map(max, batches)), int(sizes["W"]) * int(sizes["P"])
    if longest > room:
        parser.error(
            f"a sequence has {longest:,} tokens, and {sizes['W']} pages of {sizes['P']} hold "
            f"{room:,}: give --sizes with a larger W"
        )
    sys.stdout.write("\n".join(commands(some_of(batches, asked.most), asked.sizes)) + "\n")


if __name__ == "__main__":
    main()
