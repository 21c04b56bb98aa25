"""What timed calls meet and which results are judged: each call as likely as any other."""

from __future__ import annotations

from collections import Counter

from tuner.device.layout import UNCHANGED, InputChange, Patch
from tuner.device.verify.sampling import JUDGED, SampledCalls

PATCH = Patch(tuple(InputChange((place,), b"a", b"b") for place in range(50)))


def test_a_call_meets_what_none_before_it_met_but_for_what_is_kept() -> None:
    calls = SampledCalls[int](PATCH)
    met: set[int] = set()
    repeated = 0
    for turn in range(60):
        number = calls.draw()
        assert 1 <= number <= 50
        if number in met:
            assert calls.known(number) is not None, "its result is kept, so that bits can repeat"
            repeated += 1
        met.add(number)
        calls.keep(number, turn)
        if len(met) == 50:
            break
    assert repeated > 0


def test_the_first_result_is_as_likely_to_be_kept_as_the_last() -> None:
    kept: Counter[int] = Counter()
    for _ in range(3000):
        calls = SampledCalls[int](UNCHANGED)
        for turn in range(10):
            assert calls.draw() == 0
            calls.keep(0, turn)
        kept.update(result for _, result in calls.kept)
    assert kept.total() == 3000 * JUDGED
    assert all(1000 < kept[turn] < 1400 for turn in range(10)), kept
