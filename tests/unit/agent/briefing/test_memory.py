"""What was tried, told so that it is not tried again."""

from __future__ import annotations

from feedback_samples import HISTORY, made, refused

from tuner.agent.briefing.outcome import LINE, memory_text


def test_the_memory_of_a_session(golden):
    golden("memory.txt", memory_text(HISTORY))


def test_without_rounds_it_says_so():
    assert memory_text(()) == "Nothing was tried before this round."


def test_the_newest_comes_first_and_what_shares_a_base_stands_together():
    text = memory_text(HISTORY)
    assert [line for line in text.splitlines() if line.startswith("Built")] == [
        "Built on r4:",
        "Built on initial:",
        "Built on r1:",
    ]
    assert text.index("round 7") < text.index("round 5")


def test_failures_that_differ_in_a_line_number_alone_are_counted():
    text = memory_text(HISTORY)
    assert "1 earlier round ended alike: 2 (tried: eight rows a block)" in text
    assert text.count("expected a `;`") == 1


def test_failures_of_other_bases_are_told_apart():
    text = memory_text((refused(1, "a", "x", "no block"), refused(2, "b", "y", "no block")))
    assert text.count("no block") == 2


def test_an_entry_has_at_most_three_lines_of_bounded_length():
    words = "long words " * 200
    history = [refused(n, "initial", f"{n} {words}", words) for n in range(1, 9)]
    lines = memory_text(history).splitlines()
    assert len(lines) == 4  # one of them names the base
    assert max(map(len, lines)) <= LINE + 2


def test_older_rounds_are_counted_with_their_best():
    history = [made(n, "initial", f"change {n}", 1 + n / 10, 1.1) for n in range(1, 31)]
    text = memory_text(history, most=10)
    assert "round 21" in text
    assert "round 20" not in text
    assert text.endswith(
        "[left out: 20 older rounds, 0 of them failed, the best of them x3.00 as fast as the "
        "baseline]"
    )
