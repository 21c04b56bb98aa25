"""The score of a run, and its file in a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.extensions.study.mutation.examine import Judgement, MutantVerdict, save_score, score_of
from tuner.model.errors import SessionError
from tuner.report.mutation_score import FILE, MutationScore, load_score, share_text


@pytest.fixture
def score(make_subject) -> MutationScore:
    subject = make_subject()
    killed = (Judgement.KILLED,) * 3
    cycle = (*killed, Judgement.SURVIVED, Judgement.EQUIVALENT, Judgement.STILLBORN)
    verdicts = [MutantVerdict(m, f) for m, f in zip(subject.reached, 2 * cycle, strict=False)]
    return score_of(subject, verdicts, "2026-11-20")


def test_the_share_leaves_out_equivalent_and_stillborn_mutants(score: MutationScore) -> None:
    assert (score.killed, score.survived, score.equivalent, score.stillborn) == (6, 2, 2, 2)
    assert (score.share, score.examined) == (0.75, 12)
    assert len(score.survivors) == 2
    assert score.mutants > score.examined


@pytest.mark.parametrize(
    ("killed", "survived", "text"), [(0, 0, "no share"), (9999, 1, "99.9 %"), (9999, 0, "100.0 %")]
)
def test_a_share_with_a_survivor_never_reads_as_all(
    score: MutationScore, killed: int, survived: int, text: str
) -> None:
    assert share_text(score.model_copy(update={"killed": killed, "survived": survived})) == text


def test_a_score_comes_back_from_its_folder(score: MutationScore, tmp_path: Path) -> None:
    assert load_score(tmp_path) is None
    save_score(tmp_path, score.model_copy(update={"killed": 1}))
    save_score(tmp_path, score)
    assert load_score(tmp_path) == score


@pytest.mark.parametrize("text", ["", "{}", '{"version": 2}'])
def test_a_damaged_score_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    with pytest.raises(SessionError, match="is not the score of `tune mutate`"):
        load_score(tmp_path)
