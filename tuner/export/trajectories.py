"""The rounds of a session as training data: one line of JSON each, as TRL reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tuner.errors import InputError, SessionError
from tuner.export.conversation import Conversation, conversation_of
from tuner.export.scale import reward_of
from tuner.feedback.memory import RoundRecord
from tuner.history import IDLE, history
from tuner.session import Session

Format = Literal["sft", "grpo"]
Row = Mapping[str, Any]

# Formats and column names: TRL 1.16, "Dataset formats and types". A column that its trainers give
# a meaning of their own (`messages`, `label`, `images`, `environment`, `input_ids`) must not be
# among ours.
FORMATS: tuple[Format, ...] = ("sft", "grpo")


@dataclass(frozen=True, slots=True)
class Trajectories:
    """The rows of a session's rounds, and why each of the other rounds has none."""

    rows: tuple[Row, ...]
    left_out: Mapping[int, str]


def trajectories(session: Session, form: Format) -> Trajectories:
    """Make the rows of all rounds that are over and in which something was said.

    `sft` gives `prompt`, what was said before the agent answered, `completion`, all that
    followed, and `tools`. `grpo` gives as `prompt` all up to the request for a template, with the
    plan that was made then. Both have the reward and what came of the round beside them.
    """
    make = _ROWS[form]
    records = {record.number: record for record in history(session)}
    rows: list[Row] = []
    left_out: dict[int, str] = {}
    for number in sorted({note.round for note in session.notes() if note.round > 0}):
        if number not in records:
            idle = session.notes(number, IDLE)
            left_out[number] = "the agent had nothing to try" if idle else "it is not over"
            continue
        conversation = conversation_of(session.notes(number))
        shown = make(conversation)
        if isinstance(shown, str):
            left_out[number] = shown
        else:
            rows.append({**shown, **_came(session, records[number], conversation)})
    return Trajectories(tuple(rows), left_out)


def write_trajectories(directory: Path, path: Path, form: Format) -> Trajectories:
    """Write the rows of the session in a folder to a file, one a line.

    Raises `SessionError` where there is no session or not one row, and `InputError` where the
    file cannot be written.
    """
    with Session.open(directory, read_only=True) as session:
        made = trajectories(session, form)
    if not made.rows:
        raise SessionError(
            f"no round can be exported: {told(made.left_out) or 'there was none'}",
            path=directory,
            remedy="rounds are run by `tune KERNEL.cu` with --agent openai or --agent files",
        )
    # ASCII: line separators inside of texts would end a line for some readers.
    text = "".join(f"{json.dumps(row)}\n" for row in made.rows)
    unfinished = path.with_name(f"{path.name}.new")
    try:
        unfinished.write_text(text, encoding="ascii")
        unfinished.replace(path)
    except OSError as error:
        raise InputError(
            f"the trajectories cannot be written: {error.strerror or error}",
            path=path,
            remedy="choose another place with --trajectories",
        ) from error
    return made


def told(left_out: Mapping[int, str]) -> str:
    """Say which rounds are left out and why: `rounds 1 and 2: nothing was said in them`."""
    by_reason: dict[str, list[str]] = {}
    for number, reason in left_out.items():
        by_reason.setdefault(reason, []).append(str(number))
    return "; ".join(
        f"round{'s' * (len(numbers) > 1)} {', '.join(numbers)}: {reason}"
        for reason, numbers in by_reason.items()
    )


def _supervised(conversation: Conversation) -> Row | str:
    if not conversation.rest:
        return "no messages: its agent is not a model"
    return {
        "prompt": list(conversation.opening),
        "completion": list(conversation.rest),
        # None, not empty: some templates of chats introduce tools for an empty list.
        "tools": conversation.tools and list(conversation.tools),
    }


def _reinforced(conversation: Conversation) -> Row | str:
    if not conversation.rest:
        return "no messages: its agent is not a model"
    if not conversation.request:
        return "no template was asked for: the plan could not be read"
    return {"prompt": list(conversation.request)}


_ROWS: Mapping[Format, Callable[[Conversation], Row | str]] = {
    "sft": _supervised,
    "grpo": _reinforced,
}


def _came(session: Session, record: RoundRecord, conversation: Conversation) -> Row:
    """Tell what came of a round, in columns that have the same type in every row."""
    speedup = record.outcome.speedup if record.outcome else None
    manifest = session.manifest
    return {
        "reward": reward_of(speedup),
        "speedup": speedup,
        "outcome": _outcome(record),
        "kernel": manifest.kernel,
        "device": session.environment.get("device", manifest.device),
        "agent": manifest.agent,
        "model": conversation.model,
        "round": record.number,
        "base": record.base,
        "candidate": record.candidate or "",
        "problems": list(record.problems),
    }


def _outcome(record: RoundRecord) -> str:
    if record.idea is None:
        return "unplanned"
    if record.candidate is None:
        return "refused"
    assert record.outcome is not None
    return "incorrect" if record.outcome.speedup is None else "measured"
