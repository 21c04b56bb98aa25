"""Put tuned operators in the place of an engine's functions: what all plugins share.

A copy of this file is part of every exported plugin.
"""

from __future__ import annotations

import logging
import os
import pkgutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from typing import Any, ClassVar, Protocol

try:
    import torch
except ImportError:  # whoever writes a package needs the tables alone
    torch = None

ORIGINAL = object()
# A target that is not there, cannot be imported here, or does not take what replaces it.
_NOT_HERE = (
    AssertionError,
    AttributeError,
    ImportError,
    KeyError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


class Operator(Protocol):
    """What is needed of the package's operators."""

    fallback: Callable[..., Any] | None
    calls: Counter[int]
    devices: set[str]
    quiet: bool

    def attempt(self, *tensors: Any, **keywords: Any) -> bool:
        """Enqueue it, or return False where no tuned kernel serves."""

    def keep_rows(self) -> bool:
        """Serve only where rows' bits don't depend on the batch; say whether any do."""


@dataclass
class Tuned:
    """An operator, the choices that it was tuned with, and the calls that the engine's own took.

    Of these `refused` are those of a deterministic mode, where rows' bits are not known to repeat.
    Where a CUDA graph is chosen for each replay, those with it and without it are counted, too.
    """

    operator: Operator
    choices: Mapping[str, str]
    originals: int = 0
    refused: int = 0
    replays: int = 0
    original_replays: int = 0

    def serves(self, *tensors: Any, **keywords: Any) -> bool:
        """Enqueue it, or return False where no tuned kernel serves."""
        return self.operator.attempt(*tensors, **keywords)


@dataclass(frozen=True)
class Hook:
    """What an operator with these choices stands in for.

    `adapter` has the target's signature after the operator, allocates as it does and returns what
    it returns, or `ORIGINAL` where the engine's own has to take the call. `fallback` calls the
    target, its first argument, with the operator's: `torch.compile` needs it, since what is traced
    finds out later whether a tuned kernel serves. Without one, the engine's own is traced.
    `all_rows` says whether it takes any number of rows: bits of what has few may not be another's.
    With `around`, the adapter takes the target itself after the operator, calls it, and prepares
    what others of the operator's hooks need: they are placed together or not at all.
    """

    operator: str
    target: str
    adapter: Callable[..., Any]
    choices: Mapping[str, str] = field(default_factory=dict)
    fallback: Callable[..., None] | None = None
    all_rows: bool = field(default=True, kw_only=True)
    around: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class Engine:
    """An inference engine and what may be replaced in it.

    It finds plugins by the entry points of `group`. `versions` are those of its `distribution` that
    the hooks were tested with, `only` says when it calls what an operator stands in for, where that
    is not in every model, and `why_not` why there is no hook for an operator or for some of its
    choices.
    """

    name: str
    distribution: str
    group: str
    versions: tuple[str, ...]
    hooks: tuple[Hook, ...]
    only: Mapping[str, str]
    why_not: Mapping[str, str]

    @property
    def switch(self) -> str:
        """Name the variable: 0 is all off; names of operators leave only these on."""
        return f"TUNED_{self.distribution.upper()}"

    def hooks_of(self, operator: str, choices: Mapping[str, str]) -> list[Hook]:
        """List what an operator that was tuned with these choices stands in for."""
        named = (hook for hook in self.hooks if hook.operator == operator)
        return [hook for hook in named if hook.choices.items() <= choices.items()]


class Replacing:
    """The operators of one package, and what became of them in this process.

    `enabled` has those that are asked at each call: take a name out, and the engine's own serves
    until it is back. CUDA graphs keep what they captured.
    """

    engine: ClassVar[Engine]
    logger: ClassVar[logging.Logger] = logging.getLogger(__name__)

    def __init__(
        self,
        package: str,
        operators: Mapping[str, Operator],
        choices: Mapping[str, Mapping[str, str]],
    ) -> None:
        self.package = package
        self.enabled: set[str] = set()
        self._serving: set[str] = set()
        self._tuned = {name: Tuned(operator, choices[name]) for name, operator in operators.items()}
        self._registered = False

    def register(self) -> None:
        """Put in place what the switch and the engine's version allow, and log it."""
        wanted = self._switched_on()
        if self._registered or not wanted or not self._version_allows() or not self._prepared():
            return
        self._registered = True
        for name in sorted(wanted):
            self._register(name)

    def calls(self) -> dict[str, dict[str, int]]:
        """Count each operator's calls that a tuned kernel took, and that the engine's own took.

        What a CUDA graph replays was counted when it was captured. Of the latter `refused` are
        those that a deterministic mode allows no tuned kernel, where there are any. Replays are
        counted where each has a choice of graphs.
        """
        counts = {}
        for name, one in self._tuned.items():
            of_variants = one.operator.calls
            tuned = sum(count for number, count in of_variants.items() if number)
            counts[name] = {"tuned": tuned, "original": of_variants[0] + one.originals}
            if one.refused:
                counts[name]["refused"] = one.refused
            if one.replays or one.original_replays:
                counts[name] |= {"replays": one.replays, "original_replays": one.original_replays}
        return counts

    def _prepared(self) -> bool:
        """Find what placing needs; say why and return False where nothing may be replaced."""
        return True

    def _is_deterministic(self) -> bool:
        """Say whether the engine is in a mode in which results may not depend on the batch."""
        return False

    def _refuses(self, hook: Hook, tuned: Tuned) -> bool:
        """Say whether the engine's own takes all calls now, for the bits of rows."""
        return self._is_deterministic() and not (hook.all_rows and tuned.operator.keep_rows())

    def _place(self, hook: Hook, original: Any, call: Callable[..., Any]) -> None:
        """Let `call`, with what it replaces as its first argument, take the target's calls."""
        raise NotImplementedError

    def _switched_on(self) -> set[str]:
        known = set(self._tuned)
        text = os.environ.get(self.engine.switch, "1").strip()
        if text in ("0", "1", ""):
            return set() if text == "0" else known
        asked = {name.strip() for name in text.split(",")} - {""}
        if asked - known:
            switch, package = self.engine.switch, self.package
            unknown, there = ", ".join(sorted(asked - known)), ", ".join(sorted(known))
            self.logger.warning("%s names %s; %s has %s", switch, unknown, package, there)
        return asked & known

    def _version_allows(self) -> bool:
        engine, any_version = self.engine, f"{self.engine.switch}_ANY_VERSION"
        found = metadata.version(engine.distribution)
        # What comes after a + names a build.
        if found.split("+")[0] in engine.versions or os.environ.get(any_version) == "1":
            return True
        self.logger.warning(
            "%s was tested with %s %s, this is %s: nothing is replaced; %s=1 tries it",
            self.package,
            engine.name,
            ", ".join(engine.versions),
            found,
            any_version,
        )
        return False

    def _register(self, name: str) -> None:
        tuned, placed = self._tuned[name], []
        hooks = self.engine.hooks_of(name, tuned.choices)
        if any(hook.around for hook in hooks) and not self._has_all(name, hooks):
            return
        for hook in hooks:
            try:
                original = pkgutil.resolve_name(hook.target)
                if hook.fallback and tuned.operator.fallback is None:
                    tuned.operator.fallback = partial(hook.fallback, original)
                self._place(hook, original, self._around(hook, tuned))
            except _NOT_HERE as error:
                self.logger.warning("%s: %s is not replaced: %s", name, hook.target, error)
                continue
            if not hook.around:
                placed.append(hook.target)
        if placed:
            # A shape without a tuned kernel is nothing that an engine's user has to hear of.
            tuned.operator.quiet = True
            self.enabled.add(name)
            self.logger.info("%s: tuned kernels in place of %s", name, " and ".join(placed))
        elif not hooks:
            made = ", ".join(f"{key}={value}" for key, value in tuned.choices.items())
            why = self.engine.why_not.get(name, "none of its functions is this one")
            text = "%s%s: nothing of %s is replaced: %s"
            self.logger.warning(text, name, f" ({made})" if made else "", self.engine.name, why)

    def _has_all(self, name: str, hooks: list[Hook]) -> bool:
        """Say whether all that an operator needs is in this engine; warn where it is not."""
        for hook in hooks:
            try:
                pkgutil.resolve_name(hook.target)
            except _NOT_HERE as error:
                engine = f"{self.engine.name} {', '.join(self.engine.versions)}"
                text = "%s: nothing is replaced, for %s is not here: %s; it needs %s"
                self.logger.warning(text, name, hook.target, error, engine)
                return False
        return True

    def _around(self, hook: Hook, tuned: Tuned) -> Callable[..., Any]:
        if hook.around:
            return self._beside(hook, tuned)

        def call(original: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
            traced = torch.compiler.is_compiling()
            refused = self._refuses(hook, tuned)
            if (
                hook.operator in self.enabled
                and not (traced and hook.fallback is None)
                and not refused
            ):
                result = hook.adapter(tuned, *arguments, **keywords)
                if result is not ORIGINAL:
                    if not traced and hook.operator not in self._serving:
                        # Engines may set logging up after they have loaded their plugins.
                        self._serving.add(hook.operator)
                        self.logger.info("%s: tuned kernels serve %s", hook.operator, hook.target)
                    return result
            if not traced:
                tuned.originals += 1
                tuned.refused += refused
            return original(*arguments, **keywords)

        return call

    def _beside(self, hook: Hook, tuned: Tuned) -> Callable[..., Any]:
        def call(original: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
            if hook.operator not in self.enabled or self._refuses(hook, tuned):
                return original(*arguments, **keywords)
            return hook.adapter(tuned, original, *arguments, **keywords)

        return call
