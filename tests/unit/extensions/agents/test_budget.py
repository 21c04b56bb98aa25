"""What may be spent is refused before it is."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tuner.extensions.agents.budget import (
    LEAST_OUTPUT_TOKENS,
    Estimate,
    Price,
    TokenBudget,
    Usage,
    read_prices,
)
from tuner.model.errors import BudgetError, InputError, SpaceError

PRICE = Price(input=2.0, cached_input=0.5, output=10.0)


@pytest.mark.parametrize(
    ("budget", "spent", "sent", "allowed"),
    [
        (TokenBudget(), Usage(10**9, 0, 10**9), 10**9, None),
        (TokenBudget(max_tokens=10_000), Usage(3_000, 1_000, 500), 2_000, 4_500),
        # 10,000 tokens cost 0.02; 0.08 are left, at 10 a million 8,000 tokens
        (TokenBudget(max_cost=0.10, price=PRICE), Usage(), 10_000, 8_000),
        (TokenBudget(max_tokens=5_000, max_cost=100.0, price=PRICE), Usage(), 1_000, 4_000),
        (TokenBudget(max_tokens=10**9, max_cost=0.01, price=PRICE), Usage(), 0, 1_000),
        (TokenBudget(max_cost=0.0, price=Price(0.0, 0.0)), Usage(), 10**9, None),
    ],
)
def test_a_reply_is_limited_by_what_is_left_of_tokens_and_money(
    budget: TokenBudget, spent: Usage, sent: int, allowed: int | None
) -> None:
    assert (budget.spend(spent) is None) == (budget.price is None), "its cost"
    found = budget.allow(sent)
    assert found == allowed or (allowed and found == pytest.approx(allowed, abs=1))


def test_a_request_that_leaves_no_room_for_a_reply_is_refused() -> None:
    budget = TokenBudget(max_tokens=1_000)
    assert budget.allow(1_000 - LEAST_OUTPUT_TOKENS) == LEAST_OUTPUT_TOKENS
    with pytest.raises(BudgetError, match="1000 tokens is used up: 0 are spent") as caught:
        budget.allow(1_001 - LEAST_OUTPUT_TOKENS)
    assert "--max-tokens" in str(caught.value)
    assert caught.value.exit_code == 4


def test_a_request_that_the_money_does_not_pay_for_is_refused() -> None:
    budget = TokenBudget(max_cost=1.0, price=PRICE)
    budget.spend(Usage(0, 0, 99_900))
    with pytest.raises(BudgetError, match=r"1 USD is used up: 0\.999 are spent") as caught:
        budget.allow(400)
    assert "--max-cost" in str(caught.value)


def test_cached_tokens_have_their_own_price() -> None:
    assert PRICE.of(Usage(1_000_000, 600_000, 100_000)) == pytest.approx(0.8 + 0.3 + 1.0)
    assert Price(2.0, 10.0).of(Usage(1_000_000, 600_000)) == pytest.approx(2.0)


def test_money_cannot_be_limited_without_a_price() -> None:
    with pytest.raises(InputError, match="limited to 5 and the model's price is unknown"):
        TokenBudget(max_cost=5.0)


def test_what_earlier_runs_used_counts_replies_and_failures() -> None:
    budget = TokenBudget(max_tokens=100_000, price=PRICE)
    reply = {"input_tokens": 1_000, "cached_tokens": 200, "output_tokens": 50}
    failure = {"input_tokens": 900, "cached_tokens": 0, "output_tokens": 5}
    budget.remember(
        [
            {"type": "message", "message": {"role": "user", "content": "?"}},
            {"type": "failure", "error": "dropped", "usage": failure, "cost": None},
            {"type": "failure", "error": "429"},
            {"type": "reply", "message": {}, "usage": reply, "cost": 1.0},
        ]
    )
    assert budget.spent == Usage(1_900, 200, 55)
    assert budget.cost == pytest.approx(PRICE.of(Usage(1_900, 200, 55)))


def test_an_estimate_learns_the_most_tokens_a_character() -> None:
    estimate = Estimate()
    assert estimate.tokens(1_001) == 334
    estimate.learn(1_000, 400)
    estimate.learn(1_000, 300)
    estimate.learn(0, 5)
    assert estimate.tokens(1_000) == 400


def prices(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "prices.yaml"
    path.write_text(dedent(text))
    return path


def test_prices_are_read_by_model(tmp_path: Path) -> None:
    path = prices(
        tmp_path,
        """\
        version: 1
        currency: EUR
        models:
          gpt-5: {input: 1.25, cached_input: 0.125, output: 10}
          llama3:8b: {input: 0, output: 0}
        """,
    )
    file = read_prices(path)
    assert file.currency == "EUR"
    assert file.of("gpt-5") == Price(1.25, 10.0, 0.125)
    assert file.of("llama3:8b") == Price(0.0, 0.0)
    with pytest.raises(InputError, match="no price for the model 'gpt-6'") as caught:
        file.of("gpt-6")
    assert "gpt-5, llama3:8b" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("version: 1\nmodels: {}\n", 2, "`models`: Dictionary should have at least 1 item"),
        ("version: 2\nmodels: {a: {input: 1, output: 1}}\n", 1, "`version`"),
        ("version: 1\nmodels:\n  a: {input: 1}\n", 3, "`models.a.output`: Field required"),
        ("version: 1\nmodels:\n  a: {input: -1, output: 1}\n", 3, "greater than or equal to 0"),
        ("version: 1\nmodels:\n  a: {input: '1', output: 1}\n", 3, "valid number"),
        ("version: 1\nmodels:\n  a: {input: .inf, output: 1}\n", 3, "not a finite number"),
        ("version: 1\nmodels:\n  a: {in: 1, output: 1}\n", 3, "`models.a.in"),
        ("version: 1\nmodels:\n  a: {input: 1, output: 1}\n  a: {}\n", 4, "repeated"),
    ],
)
def test_a_mistake_in_the_prices_has_its_line(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    with pytest.raises(SpaceError, match=said) as caught:
        read_prices(prices(tmp_path, text))
    assert caught.value.line == line
