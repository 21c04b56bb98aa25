"""What a model may cost: tokens and money, refused before they are spent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil, floor, inf
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tuner.model.errors import BudgetError, InputError
from tuner.space.yaml import read

# Prose has four characters to a token, code fewer: a first request must not be thought shorter than
# it is. What the server counts replaces it.
CHARS_PER_TOKEN = 3.0
# Below this no plan can be written: what is left is kept instead of being wasted on half of one.
LEAST_OUTPUT_TOKENS = 256

_PER_MILLION = 1_000_000
_EXAMPLE = (
    "write `version: 1` and `models: {NAME: {input: 1.25, cached_input: 0.125, output: 10}}`, "
    "prices per million tokens"
)
_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request and its reply; `cached_tokens` are among `input_tokens`."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    @property
    def total(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
        )


@dataclass(frozen=True, slots=True)
class Price:
    """What a model costs per million tokens, in the currency of its file."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    input: _Amount
    output: _Amount
    cached_input: _Amount | None = None

    def of(self, usage: Usage) -> float:
        cached = self.input if self.cached_input is None else self.cached_input
        fresh = usage.input_tokens - usage.cached_tokens
        cost = fresh * self.input + usage.cached_tokens * cached + usage.output_tokens * self.output
        return cost / _PER_MILLION


@dataclass(frozen=True, slots=True)
class PriceList:
    """The prices of a file, by the model's name as the server knows it."""

    path: Path
    currency: str
    models: Mapping[str, Price]

    def of(self, model: str) -> Price:
        """Find the price of a model; raise `InputError` for one that the file does not hold."""
        if model not in self.models:
            raise InputError(
                f"no price for the model {model!r}",
                path=self.path,
                remedy=f"add it under `models`; there are: {', '.join(self.models) or 'none'}",
            )
        return self.models[model]


class _FileModel(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: Literal[1]
    currency: str = "USD"
    models: dict[str, Price] = Field(min_length=1)


def read_prices(path: Path) -> PriceList:
    """Read a file of prices; raise `SpaceError` with its line for what is wrong."""
    document = read(path)
    try:
        file = _FileModel.model_validate(document.data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(step) for step in first["loc"])
        message = f"`{key}`: {first['msg']}"
        raise document.error(message, *first["loc"], remedy=_EXAMPLE) from error
    return PriceList(path, file.currency, file.models)


@dataclass(slots=True)
class TokenBudget:
    """How much may be spent, and how much is.

    `max_tokens` counts what is sent and received, `max_cost` is in the currency of `price`; None
    is no limit. Raises `InputError` where money is limited and the price is unknown.
    """

    max_tokens: int | None = None
    max_cost: float | None = None
    price: Price | None = None
    currency: str = "USD"
    spent: Usage = field(default=Usage(), init=False)
    cost: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if self.max_cost is not None and self.price is None:
            raise InputError(
                f"the money is limited to {self.max_cost:g} and the model's price is unknown",
                remedy=f"give a file of prices: {_EXAMPLE}",
            )

    def spend(self, usage: Usage) -> float | None:
        """Count what was used and say what it cost; None where the price is unknown."""
        self.spent += usage
        if self.price is None:
            return None
        cost = self.price.of(usage)
        self.cost += cost
        return cost

    def remember(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Count what the entries of earlier transcripts say was used, each of them once."""
        for entry in entries:
            if (usage := entry.get("usage")) is not None:
                self.spend(Usage(**usage))

    def allow(self, input_tokens: int) -> int | None:
        """Say how many tokens may be written in reply to so many; None for any number.

        Raises `BudgetError` where too little is left for any reply.
        """
        tokens = inf if self.max_tokens is None else self.max_tokens - self.spent.total
        tokens -= input_tokens
        if tokens < LEAST_OUTPUT_TOKENS:
            raise BudgetError(
                f"the budget of {self.max_tokens} tokens is used up: {self.spent.total} are spent, "
                f"and the next request needs about {input_tokens + LEAST_OUTPUT_TOKENS}",
                remedy="raise --max-tokens",
            )
        affordable = inf
        if self.max_cost is not None and self.price is not None:
            left = self.max_cost - self.cost - self.price.of(Usage(input_tokens))
            if left < 0:
                affordable = 0
            elif self.price.output:
                affordable = left * _PER_MILLION / self.price.output
        if affordable < LEAST_OUTPUT_TOKENS:
            raise BudgetError(
                f"the budget of {self.max_cost:g} {self.currency} is used up: {self.cost:.4g} are "
                f"spent, and the next request sends about {input_tokens} tokens",
                remedy="raise --max-cost",
            )
        most = min(tokens, affordable)
        return None if most == inf else floor(most)


@dataclass(slots=True)
class Estimate:
    """How many tokens a text is, by the most that this model was seen to make of a character."""

    tokens_per_char: float = 1 / CHARS_PER_TOKEN

    def tokens(self, chars: int) -> int:
        return ceil(chars * self.tokens_per_char)

    def learn(self, chars: int, tokens: int) -> None:
        """Take in how many tokens the server counted in so many characters."""
        if chars > 0:
            self.tokens_per_char = max(self.tokens_per_char, tokens / chars)
