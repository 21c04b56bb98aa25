"""Record which share of silu_and_mul's mutants the verification catches on the `host` device."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from environment import environment, write_result

ROOT = Path(__file__).parents[1]
SPACE = "search_spaces/sglang/silu_and_mul.yaml"
SUBJECTS = {
    "baseline": (),
    "template, default": ("--config", "default"),
    "template, flat": ("--config", "layout=flat"),
    "template, persistent": (
        "--config",
        "layout=flat,specialize=true,persistent=true,min_blocks=4",
    ),
}


def main() -> None:
    """Examine every mutant of the baseline and of three configs, and write the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, help="mutants of each subject, otherwise all")
    parser.add_argument("--out", type=Path, help="another place for the JSON")
    options = parser.parse_args()
    limit = ("--limit", str(options.limit)) if options.limit else ()
    scores = {}
    for name, words in SUBJECTS.items():
        found = examined(*words, *limit)
        share = found["share"]
        shown = "no share" if share is None else f"{share:.1%}"
        print(f"{name}: {shown} of {found['counts']} in {found['seconds']:.0f} s")
        scores[name] = summary(found)
    content = {"environment": environment(), "space": SPACE, "scores": scores}
    write_result(options.out or "mutation_score", content)


def examined(*words: str) -> dict:
    """Run `tune mutate` as a process of its own."""
    command = [sys.executable, "-m", "tuner", "mutate", SPACE, "--json", *words]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def summary(found: dict) -> dict[str, object]:
    """Keep the counts and what survived or is marked, without the reasons for the dead."""
    kept = ("subject", "share", "mutants", "examined", "counts", "workloads", "seconds")
    by_operator: dict[str, dict[str, int]] = {}
    for verdict in found["verdicts"]:
        counts = by_operator.setdefault(verdict["operator"], {})
        counts[verdict["fate"]] = counts.get(verdict["fate"], 0) + 1
    return {
        **{key: found[key] for key in kept},
        "by_operator": dict(sorted(by_operator.items())),
        "survivors": [
            {"id": v["id"], "line": v["line"], "reason": v["reason"]}
            for v in found["verdicts"]
            if v["fate"] == "survived"
        ],
        "marked": [v["id"] for v in found["verdicts"] if v["marked"]],
        "wrong_marks": found["wrong_marks"],
    }


if __name__ == "__main__":
    main()
