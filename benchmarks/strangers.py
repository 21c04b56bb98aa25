"""What becomes of thirty sources written as ten public projects write theirs.

    python benchmarks/strangers.py [NAME ...] [--keep DIR] [--large]
    python benchmarks/strangers.py --small DIR [NAME ...]
    python benchmarks/strangers.py --large --draft-only --keep DIR
    python benchmarks/strangers.py --large --drafts DIR --device cuda --out FILE

Each file under `benchmarks/strangers` is drafted with `tune init`. What the draft says of each
argument and of the launch is compared with what is right, in the YAML file beside the source; what
is wrong and bears no mark of doubt is counted apart. A line that a user had to mend is counted: a
blank, a wrong line, a tolerance, a line of `inputs()`. The body of the reference isn't. Then the
mended draft is tuned on the CPU, which verifies the baseline and some configs. Drafts of the large
sizes are made without a GPU, and tuned on another machine that has one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from environment import environment, write_result
from ruamel.yaml import YAML
from stranger_drafts import Case, Judgement, cases, judge, small_cases

MOST_LINES = 5
TRIALS = 4
TIME_S = 300
# A GPU is paid for by the minute.
DRAFTS_TRIALS = 3
DRAFTS_TIME_S = 90


def run(
    *words: str | Path, device: str = "host", time_s: float = TIME_S
) -> tuple[dict[str, Any] | None, str]:
    """Run `tune`; give its JSON object, or what it says instead."""
    environ = {**os.environ, "TUNE_STORE": "none"}
    if device == "host":
        environ["CUDA_VISIBLE_DEVICES"] = ""
    command = [sys.executable, "-m", "tuner", *map(str, words), "--json"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environ, timeout=time_s, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"no end after {time_s:g} s"
    if done.returncode:
        return None, said(done.stderr + done.stdout)
    return json.loads(done.stdout), ""


def said(text: str) -> str:
    """Give the error in one line, without the folders of this machine."""
    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith("Error")), 0)
    last = (
        lines[-1:] if lines and lines[0].startswith("Traceback") else lines[start + 1 : start + 2]
    )
    line = " ".join([*lines[start : start + 1], *last]).strip()
    return re.sub(r"(?<![\w.-])(?:/[\w.-]+)+/", "", line)[:300]


def draft(case: Case, folder: Path) -> tuple[dict[str, Any], Judgement | None]:
    """Draft, judge and mend one source below `folder`."""
    source, out = case.copy_to(folder / "project"), folder / "draft"
    row: dict[str, Any] = {"name": case.name, "drafted": False, "verified": False}
    row["block_wanted"] = case.expected["block"]
    row["experts_wanted"] = case.expected["expert"]
    kernel, macros = case.expected.get("kernel"), case.expected.get("define", ())
    more = [*(["--kernel", kernel] if kernel else []), *(f"-D{macro}" for macro in macros)]
    start = time.monotonic()
    made, problem = run("init", source, "--out", out, *more)
    row["init_s"] = round(time.monotonic() - start, 1)
    if made is None or not (spaces := list((out / "search_spaces").glob("*.yaml"))):
        notes = (made or {}).get("notes", [])
        return {**row, "why_not": problem or " ".join(notes)[:300]}, None
    judgement = judge(spaces[0], case)
    row |= {
        "drafted": True,
        "silently_wrong": judgement.silent,
        "lines": judgement.lines,
        "block_offered": judgement.block_offered,
        "parameters": made["parameters"],
        "experts": judgement.experts,
    }
    if judgement.problem:
        row["why_not"] = judgement.problem
    return row, judgement


def tune(
    folder: Path, session: Path, trials: int, device: str, time_s: float
) -> tuple[dict[str, Any] | None, str]:
    """Tune the draft below `folder`; give the results, or what `tune` says instead."""
    (space,) = (folder / "draft" / "search_spaces").glob("*.yaml")
    kernel = (space.parent / YAML(typ="safe").load(space)["source"]).resolve()
    words = [kernel, "--space", space, "--device", device, "--no-mutants", "--trials", str(trials)]
    words += ["--seed", "1", "--quiet", "--session", session]
    words += ["--jobs", "1"] if device == "host" else []
    return run(*words, device=device, time_s=time_s)


def outcome(done: Mapping[str, Any] | None, problem: str) -> dict[str, Any]:
    """Give what a row says of a run."""
    if done is None:
        return {"why_not": problem}
    correct = done["trials"]["correct"]
    return {"verified": correct > 0, "configs_correct": correct, "trials": done["trials"]}


def write_inputs(judgement: Judgement) -> int:
    """Write the inputs of a case in place of the draft's own; give their lines."""
    reference, text, count = judgement.inputs
    reference.write_text(text, encoding="utf-8")
    return count


def measured(case: Case, folder: Path, trials: int | None = None) -> dict[str, Any]:
    """Draft, judge, mend and verify one source below `folder`."""
    trials = trials or TRIALS
    row, judgement = draft(case, folder)
    if judgement is None or judgement.problem:
        return row
    done, problem = tune(folder, folder / "session", trials, "host", TIME_S)
    if done is None and judgement.inputs is not None:
        # where the draft's own inputs do not suit, those of the case are written
        row["lines"] += write_inputs(judgement)
        done, problem = tune(folder, folder / "session_with_inputs", trials, "host", TIME_S)
    return row | outcome(done, problem)


def kept(case: Case, folder: Path) -> dict[str, Any]:
    """Draft, judge and mend one source, with its own inputs, and leave the row beside it."""
    row, judgement = draft(case, folder)
    if judgement is not None and judgement.inputs is not None:
        row["lines"] += write_inputs(judgement)
    (folder / "row.json").write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")
    return row


def run_draft(folder: Path, session: Path, device: str, time_s: float) -> dict[str, Any]:
    """Verify a source whose draft `kept` left in `folder`."""
    row = json.loads((folder / "row.json").read_text(encoding="utf-8"))
    if not row["drafted"] or "why_not" in row:
        return row
    start = time.monotonic()
    done, problem = tune(folder, session, DRAFTS_TRIALS, device, time_s)
    row["seconds"] = round(time.monotonic() - start, 1)
    if done is not None and "roundings" in done:
        row["roundings"] = done["roundings"]
    return row | outcome(done, problem)


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Count what the figures of the issue count."""
    wanted = [row for row in rows if row["block_wanted"]]
    return {
        "sources": len(rows),
        "drafted": sum(row["drafted"] for row in rows),
        "verified": sum(row["verified"] for row in rows),
        "verified_after_few_lines": sum(
            row["verified"] and row["lines"] <= MOST_LINES for row in rows
        ),
        "verified_after_ten_lines": sum(row["verified"] and row["lines"] <= 10 for row in rows),
        "drafts_with_something_silently_wrong": sum(
            bool(row.get("silently_wrong")) for row in rows
        ),
        "experts": experts(rows),
        "tracebacks": sum(row.get("why_not", "").startswith("Traceback") for row in rows),
        "silently_wrong": sum(len(row.get("silently_wrong", ())) for row in rows),
        "block_offered_of_wanted": [
            sum(row.get("block_offered", False) for row in wanted),
            len(wanted),
        ],
    }


def experts(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Count what an expert would name in all sources, and of it what drafts offer and what acts."""
    found = [shown for row in rows for shown in row.get("experts", {}).values()]
    undrafted = sum(len(row["experts_wanted"]) for row in rows if "experts" not in row)
    return {
        "named": len(found) + undrafted,
        "offered": sum(shown is not None for shown in found),
        "effective": sum(shown is True for shown in found),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Lay the sources out by project."""
    lines = [f"{'source':42} drafted lines silent block verified"]
    for row in rows:
        told = ["yes" if row["drafted"] else "no", str(row.get("lines", "")), ""]
        told[2] = str(len(row.get("silently_wrong", ()))) if row["drafted"] else ""
        block = "yes" if row.get("block_offered") else "no" if row["drafted"] else ""
        verified = f"{row['configs_correct']} right" if row["verified"] else "no"
        lines.append(f"{row['name']:42} {told[0]:7} {told[1]:>5} {told[2]:>6} {block:5} {verified}")
        lines += [f"    silent: {one}" for one in row.get("silently_wrong", ())]
        lines += [f"    {row['why_not']}"] if row.get("why_not") else []
    return "\n".join(lines)


def read_words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of a source's name")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what is made there")
    parser.add_argument("--large", action="store_true", help="at sizes as production has them")
    parser.add_argument("--small", type=Path, metavar="DIR", help="small sources, and unseen ones")
    parser.add_argument("--trials", type=int, default=TRIALS, help="configs of each source")
    parser.add_argument("--draft-only", action="store_true", help="leave drafts in --keep DIR")
    parser.add_argument("--drafts", type=Path, metavar="DIR", help="tune what --draft-only left")
    parser.add_argument("--device", choices=["host", "cuda"], default="host", help="for --drafts")
    parser.add_argument("--time", type=float, default=DRAFTS_TIME_S, help="seconds for each draft")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the JSON file of the results")
    words = parser.parse_args()
    if words.draft_only and words.keep is None:
        parser.error("--draft-only leaves its drafts in a folder: name it with --keep DIR")
    if words.device != "host" and words.drafts is None:
        parser.error("--device is for drafts that were made before: name their folder (--drafts)")
    if words.keep is not None and words.keep.exists() and any(words.keep.iterdir()):
        parser.error(f"{words.keep} is not empty: give a new folder")
    return words


def write_rows(rows: Sequence[Mapping[str, Any]], name: str | Path) -> None:
    result = {"benchmark": "strangers", **summary(rows), "most_lines": MOST_LINES}
    write_result(name, {**result, "rows": rows, "environment": environment()})


def run_drafts(folders: Sequence[Path], words: argparse.Namespace) -> list[dict[str, Any]]:
    """Verify drafts one after another, as one at a time locks a GPU; write each row at once."""
    if missing := [folder.name for folder in folders if not (folder / "row.json").is_file()]:
        raise SystemExit(
            f"{words.drafts} has no draft of {missing[0]}: --draft-only --keep makes it"
        )
    rows = []
    with tempfile.TemporaryDirectory() as sessions:
        for folder in folders:
            rows.append(run_draft(folder, Path(sessions, folder.name), words.device, words.time))
            print(table(rows[-1:]), flush=True)
            if words.out is not None:
                write_rows(rows, words.out)
    return rows


def main() -> None:
    words = read_words()
    chosen = cases(words.names, large=words.large)
    if words.small is not None:
        chosen = small_cases(words.small, words.names)
    names = [case.name.replace("/", "_") for case in chosen]
    if words.drafts is not None:
        rows = run_drafts([words.drafts / name for name in names], words)
    else:
        with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(2) as pool:
            folders = [(words.keep or Path(temporary)) / name for name in names]
            work = kept if words.draft_only else partial(measured, trials=words.trials)
            rows = list(pool.map(work, chosen, folders))
    print(table(rows))
    print(summary(rows))
    everything = not (words.names or words.large or words.draft_only)
    if words.drafts is None and (words.out or everything):
        write_rows(rows, words.out or ("strangers_small" if words.small else "strangers"))


if __name__ == "__main__":
    main()
