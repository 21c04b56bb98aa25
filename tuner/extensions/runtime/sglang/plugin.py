"""Put tuned operators in the place of SGLang's functions, by SGLang's own registry of hooks.

A copy of this file is part of every exported plugin.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from tuner.extensions.runtime.pytorch.replacing import Hook, Replacing, Tuned
from tuner.extensions.runtime.sglang.hooks import ENGINE


class Plugin(Replacing):
    """The operators of one package in SGLang."""

    engine = ENGINE
    _registry: Any = None
    _batch_invariant: Callable[[], bool] | None = None

    def _prepared(self) -> bool:
        self._registry = importlib.import_module("sglang.srt.plugins.hook_registry")
        try:
            module = importlib.import_module("sglang.srt.batch_invariant_ops")
        except ImportError:
            return True
        self._batch_invariant = module.is_batch_invariant_mode_enabled
        return True

    def _is_deterministic(self) -> bool:
        return self._batch_invariant is not None and self._batch_invariant()

    def _refuses(self, hook: Hook, tuned: Tuned) -> bool:
        # What is compiled in prefill and eager in decode would give a row's token both ways.
        both_ways = hook.fallback is None and self._is_deterministic()
        return both_ways or super()._refuses(hook, tuned)

    def _place(self, hook: Hook, original: Any, call: Callable[..., Any]) -> None:
        around = self._registry.HookType.AROUND
        self._registry.HookRegistry.register(hook.target, call, around)
