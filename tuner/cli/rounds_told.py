"""What the rounds of a run came to, told at its end: lines for people, an object for `--json`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.report import wording

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tuner.errors import AgentError
    from tuner.report.data import ReportData
    from tuner.report.rounds import Round, Spent

# Of a change or a refusal, in one line.
MOST_CHARS = 100


def round_lines(data: ReportData) -> Iterator[str]:
    """Write one line for every round, and one for what a model's replies took."""
    for one in data.rounds:
        yield f"{f'round {one.number}':15}{_came_to(one)}"
    spent = _spent(data)
    if spent is not None:
        cost = "" if spent.cost is None else f", cost {spent.cost:.4g}"
        cached = f" ({spent.cached:,} of them cached)" if spent.cached else ""
        yield f"tokens         {spent.input:,} read{cached}, {spent.output:,} written{cost}"


def agent_object(data: ReportData, failure: AgentError | None) -> dict[str, object]:
    """Make what `--json` says of the agent beside its rounds; `failure` is what ended them."""
    assert data.author is not None
    spent = _spent(data)
    return {
        "name": data.author.agent,
        "models": list(data.author.models),
        "policy": data.author.policy,
        "tokens": None
        if spent is None
        else {"read": spent.input, "cached": spent.cached, "written": spent.output},
        "cost": None if spent is None else spent.cost,
        "failure": None if failure is None else str(failure),
    }


def _came_to(one: Round) -> str:
    record = one.record
    parts = [f"on {record.base}"] if record.base else []
    parts += [_short(record.idea.change)] if record.idea else []
    about = ", ".join(parts)
    return f"{about}: {_end(one)}" if about else _end(one)


def _end(one: Round) -> str:
    problems = one.record.problems
    if one.end == "searched":
        assert one.speedup is not None
        return f"{wording.ratio(one.speedup)} over the baseline"
    if one.end == "refused":
        times = "" if len(problems) == 1 else f" {len(problems)} times, at last"
        return f"refused{times}: {_short(problems[-1])}"
    return {"incorrect": "no config ran correctly", "idle": "nothing left to try"}.get(
        one.end, "not ended"
    )


def _spent(data: ReportData) -> Spent | None:
    from tuner.report.rounds import Spent

    total = sum((one.spent for one in data.rounds), Spent())
    return total if total.replies else None


def _short(text: str) -> str:
    line = (text.splitlines() or [""])[0].strip()
    return line if len(line) <= MOST_CHARS else f"{line[: MOST_CHARS - 3]}..."
