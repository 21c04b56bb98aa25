"""What timed calls meet and which results are judged: each call as likely as any other."""

from __future__ import annotations

from collections import Counter

from tuner.device.layout import UNCHANGED, InputChange, Patch
from tuner.device.timing import JUDGED, SampledCalls

PATCH = Patch(tuple(InputChange((place,), b"a", b"b") for place in range(50)))


def test_a_call_meets_what_none_before_it_met_but_for_what_is_kept() -> None:
    calls, met, repeated = SampledCalls[int](PATCH), set[int](), 0
    for turn in range(200):
        judging = calls.plan()
        variant = judging.variant if judging else calls.draw()
        assert 1 <= variant <= 50
        if judging and judging.place is None:
            assert calls.known(variant) is not None, "its result is kept: bits can be compared"
            repeated += 1
            continue
        assert variant not in met
        met.add(variant)
        if judging and judging.place is not None:
            calls.kept[judging.place] = variant, turn
        if len(met) == 50:
            break
    assert repeated > 0


def test_the_first_result_is_as_likely_to_be_kept_as_the_last() -> None:
    kept: Counter[int] = Counter()
    for _ in range(3000):
        calls, turn = SampledCalls[int](UNCHANGED), 0
        while turn < 10:
            judging = calls.plan()
            if judging and judging.place is None:
                continue
            if judging and judging.place is not None:
                assert judging.variant == 0
                calls.kept[judging.place] = 0, turn
            turn += 1
        kept.update(result for _, result in calls.kept.values())
    assert kept.total() == 3000 * JUDGED
    assert all(1000 < kept[turn] < 1400 for turn in range(10)), kept


def test_several_that_are_planned_together_have_places_of_their_own() -> None:
    calls = SampledCalls[int](PATCH)
    assert [one.place for one in (calls.plan(), calls.plan()) if one] == [0, 1]
