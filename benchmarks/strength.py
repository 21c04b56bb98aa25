"""Of how many broken versions of strangers' kernels verification catches, sixteen of each.

    python benchmarks/strangers.py --keep DIR --out FILE
    python benchmarks/strength.py --drafts DIR [NAME ...]

The kernels are those of `benchmarks/strangers`, as drafted and mended, with the draft's own inputs
where these suit, and of `benchmarks/unseen`. Each is broken by `tune mutate` in sixteen places,
spread evenly, and verified on the CPU. A version whose outputs cannot differ counts for nothing: it
is marked, with the reason, in NAME.mutants.yaml beside the source.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from environment import environment, write_result

from tuner.extensions.study.mutation.subject import default_path

ROOT = Path(__file__).resolve().parents[1]
UNSEEN, STRANGERS = ROOT / "benchmarks/unseen", ROOT / "benchmarks/strangers"
MUTANTS = 16
ASKED = 0.95
TIME_S = 600


def subjects(drafts: Path) -> dict[str, tuple[Path, Path]]:
    """Give each kernel's space by its name, and where its marks are."""
    found = {}
    for source in sorted(STRANGERS.rglob("*.cu")):
        name = f"{source.relative_to(STRANGERS).parts[0]}/{source.stem}"
        spaces = list(drafts.joinpath(name.replace("/", "_")).rglob("search_spaces/*.yaml"))
        if spaces:
            found[name] = spaces[0], default_path(source)
    for source in sorted(UNSEEN.rglob("*.cu")):
        found[f"unseen/{source.stem}"] = source.with_suffix(".yaml"), default_path(source)
    return found


def broken(space: Path, marks: Path) -> dict[str, object]:
    """Break one kernel; say what became of its versions."""
    command = [sys.executable, "-m", "tuner", "mutate", str(space), "--limit", str(MUTANTS)]
    command += ["--equivalent", str(marks)] if marks.exists() else []
    try:
        done = subprocess.run(
            [*command, "--json"], capture_output=True, text=True, timeout=TIME_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"why_not": f"no end after {TIME_S} s"}
    if done.returncode:
        return {"why_not": " ".join(done.stderr.split())[-500:]}
    told = json.loads(done.stdout)
    survivors = [
        f"line {one['line']}: {one['before']} -> {one['after']}" for one in told["survivors"]
    ]
    row = {**told["counts"], "seconds": told["seconds"], "survivors": survivors}
    late = [one for one in told["verdicts"] if one["reason"].startswith("timeout")]
    row["ended_for_time"] = [one["id"] for one in late]
    row |= {"wrong_marks": told["wrong_marks"]} if told["wrong_marks"] else {}
    return row | ({"unsanitized": told["unsanitized"]} if told["unsanitized"] else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of a kernel's name")
    parser.add_argument("--drafts", type=Path, required=True)
    asked = parser.parse_args()
    rows = []
    for name, (space, marks) in subjects(asked.drafts).items():
        if asked.names and not any(part in name for part in asked.names):
            continue
        rows.append({"name": name, **broken(space, marks)})
        print(rows[-1], flush=True)
    caught = sum(row.get("killed", 0) for row in rows)
    differ = caught + sum(row.get("survived", 0) for row in rows)
    result = {
        "benchmark": "strength",
        "kernels": len(rows),
        "differ": differ,
        "caught": caught,
        "share": round(caught / max(differ, 1), 4),
        "asked": ASKED,
        "met": caught >= ASKED * differ,
        "rows": rows,
        "environment": environment(),
    }
    if not asked.names:
        write_result("strength", result)


if __name__ == "__main__":
    main()
