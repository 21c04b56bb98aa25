"""Methods that are only compared with keep the contract, and go where times are shorter."""

from __future__ import annotations

import pytest
import rival_searchers
from rival_searchers import HELION, SAMPLED

from tuner import plugins
from tuner.model.errors import InputError
from tuner.search.factory import require_searcher
from tuner.testing.searchers import POOL, SPACE, SearcherContract, SearcherMaker, drive, smooth


class TestPatternSearch(SearcherContract):
    @pytest.fixture
    def make(self) -> SearcherMaker:
        return lambda pool, space, *, seed, budget, seeds: HELION.make(
            pool, space, "pattern", seed, budget, seeds
        )


class TestSampler(SearcherContract):
    @pytest.fixture
    def make(self) -> SearcherMaker:
        return lambda pool, space, *, seed, budget, seeds: SAMPLED.make(
            pool, space, "nsga2", seed, budget, seeds
        )


def test_a_descent_tries_what_is_one_step_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rival_searchers, "INITIAL", 1)
    searcher = HELION.make(POOL, SPACE, "pattern", 0, 20, [POOL[0]])
    first, *around = drive(searcher, smooth, 4, batch=1)
    assert first == POOL[0]
    assert all(len(first.items() - config.items()) == 1 for config in around)


def test_they_are_searchers_once_they_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plugins.OWN, plugins.SEARCHERS, dict(plugins.OWN[plugins.SEARCHERS]))
    rival_searchers.register()
    require_searcher("helion:pattern")
    require_searcher("optuna_sampler:nsga2")
    for name in ("helion:other", "optuna_sampler:other"):
        with pytest.raises(InputError):
            require_searcher(name)
    monkeypatch.undo()
    plugins.points_of.cache_clear()
