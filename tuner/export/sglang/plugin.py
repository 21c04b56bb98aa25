"""Put tuned operators in the place of SGLang's functions, by SGLang's own registry of hooks.

A copy of this file is part of every exported plugin.
"""

from __future__ import annotations

import importlib
import logging
import os
import pkgutil
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from typing import Any

import torch

from .hooks import ORIGINAL, VERSIONS, WHY_NOT, Hook, Operator, Tuned, hooks_of

logger = logging.getLogger(__name__)
# 0 switches all off; names of operators, with commas between them, leave only these on.
SWITCH = "TUNED_SGLANG"
ANY_VERSION = "TUNED_SGLANG_ANY_VERSION"


class Plugin:
    """The operators of one package, and what became of them in this process.

    `enabled` has those that are asked at each call: take a name out, and SGLang's own serves until
    it is back. CUDA graphs keep what they captured.
    """

    def __init__(
        self,
        package: str,
        operators: Mapping[str, Operator],
        choices: Mapping[str, Mapping[str, str]],
    ) -> None:
        self.package = package
        self.enabled: set[str] = set()
        self._tuned = {name: Tuned(one, choices[name]) for name, one in operators.items()}
        self._batch_invariant: Callable[[], bool] = _never

    def register(self) -> None:
        """Register the hooks that the switch and SGLang's version allow, and log them."""
        wanted = self._switched_on()
        if not wanted or not self._version_allows():
            return
        registry = importlib.import_module("sglang.srt.plugins.hook_registry")
        self._batch_invariant = _batch_invariance()
        for name in sorted(wanted):
            self._register(registry, name)

    def calls(self) -> dict[str, dict[str, int]]:
        """Count the calls of each operator that a tuned kernel took, and that SGLang's own took.

        What a CUDA graph replays was counted when it was captured.
        """
        counts = {}
        for name, one in self._tuned.items():
            of_variants = one.operator.calls
            tuned = sum(count for number, count in of_variants.items() if number)
            counts[name] = {"tuned": tuned, "original": of_variants[0] + one.originals}
        return counts

    def _switched_on(self) -> set[str]:
        known = set(self._tuned)
        text = os.environ.get(SWITCH, "1").strip()
        if text in ("0", "1", ""):
            return set() if text == "0" else known
        asked = {name.strip() for name in text.split(",")} - {""}
        if asked - known:
            unknown, there = ", ".join(sorted(asked - known)), ", ".join(sorted(known))
            logger.warning("%s names %s; %s has %s", SWITCH, unknown, self.package, there)
        return asked & known

    def _version_allows(self) -> bool:
        found = metadata.version("sglang")
        if found in VERSIONS or os.environ.get(ANY_VERSION) == "1":
            return True
        logger.warning(
            "%s was tested with SGLang %s, this is %s: nothing is replaced; %s=1 tries it",
            self.package,
            ", ".join(VERSIONS),
            found,
            ANY_VERSION,
        )
        return False

    def _register(self, registry: Any, name: str) -> None:
        tuned, placed = self._tuned[name], []
        hooks = hooks_of(name, tuned.choices)
        for hook in hooks:
            try:
                original = pkgutil.resolve_name(hook.target)
            except (AttributeError, ImportError, OSError, RuntimeError) as error:
                logger.warning("%s: SGLang has no %s here: %s", name, hook.target, error)
                continue
            if hook.fallback and tuned.operator.fallback is None:
                tuned.operator.fallback = partial(hook.fallback, original)
            registry.HookRegistry.register(
                hook.target, self._around(hook, tuned), registry.HookType.AROUND
            )
            placed.append(hook.target)
        if placed:
            self.enabled.add(name)
            logger.info("%s: tuned kernels in place of %s", name, " and ".join(placed))
        elif not hooks:
            made = ", ".join(f"{key}={value}" for key, value in tuned.choices.items())
            why = WHY_NOT.get(name, "none of its functions is this one")
            logger.warning("%s (%s): nothing of SGLang is replaced: %s", name, made, why)

    def _around(self, hook: Hook, tuned: Tuned) -> Callable[..., Any]:
        def call(original: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
            traced = torch.compiler.is_compiling()
            if (
                hook.operator in self.enabled
                and not (traced and hook.fallback is None)
                and not self._batch_invariant()
            ):
                result = hook.adapter(tuned, *arguments, **keywords)
                if result is not ORIGINAL:
                    return result
            if not traced:
                tuned.originals += 1
            return original(*arguments, **keywords)

        return call


def _never() -> bool:
    return False


def _batch_invariance() -> Callable[[], bool]:
    """Return SGLang's question whether results must not depend on the batch, as ours do."""
    try:
        module = importlib.import_module("sglang.srt.batch_invariant_ops")
    except ImportError:
        return _never
    found: Callable[[], bool] = module.is_batch_invariant_mode_enabled
    return found
