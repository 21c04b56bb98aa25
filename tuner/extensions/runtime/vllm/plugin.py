"""Put tuned operators in vLLM: as implementations of its IR, custom layers and functions.

A copy of this file is part of every exported plugin.
"""

from __future__ import annotations

import importlib
import logging
import re
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from tuner.extensions.runtime.pytorch.replacing import Hook, Replacing
from tuner.extensions.runtime.vllm.hooks import ENGINE, Implementation


class Plugin(Replacing):
    """The operators of one package in vLLM."""

    engine = ENGINE
    # vLLM shows what is logged below its own name.
    logger = logging.getLogger("vllm.plugins.tuned")
    _deterministic = False

    def _prepared(self) -> bool:
        self._deterministic = bool(importlib.import_module("vllm.envs").VLLM_BATCH_INVARIANT)
        if self._deterministic and not sum(
            one.operator.keep_rows() for one in self._tuned.values()
        ):
            # Which tuned kernel serves depends on the batch.
            text = "%s: VLLM_BATCH_INVARIANT is set: nothing is replaced"
            self.logger.warning(text, self.package)
            return False
        wanted = sorted({name for one in self._tuned.values() for name in one.operator.devices})
        found = _device_name()
        if found not in wanted:
            # What is compiled would call the operators for nothing.
            text = "%s is tuned for %s, this is %s: nothing is replaced"
            self.logger.warning(text, self.package, ", ".join(wanted), found)
            return False
        self._provider = re.sub(r"[^a-z0-9_]", "_", f"tuned_{self.package}".lower())
        self._implemented: list[str] = []
        self._layers: dict[str, str] = {}
        self._prefer_ours()
        return True

    def _is_deterministic(self) -> bool:
        return self._deterministic

    def _register(self, name: str) -> None:
        hooks = self.engine.hooks_of(name, self._tuned[name].choices)
        if self._deterministic and any(isinstance(hook, Implementation) for hook in hooks):
            # Where ours serves no shape vLLM's compiled kernel would, which counts the rows.
            text = "%s: VLLM_BATCH_INVARIANT is set: %s stays vLLM's"
            self.logger.warning(text, self.package, name)
            return
        super()._register(name)

    def _place(self, hook: Hook, original: Any, call: Callable[..., Any]) -> None:
        if isinstance(hook, Implementation):
            self._implement(hook, original, call)
        elif isinstance(original, type):
            self._derive(original, call)
        else:
            _replace(hook.target, original, call)

    def _implement(self, hook: Implementation, op: Any, call: Callable[..., Any]) -> None:
        """Add an implementation to an operator of the IR; where ours doesn't serve it is vLLM's."""
        importlib.import_module("vllm.kernels.vllm_c")
        native, own = (op.impls[provider].impl_fn for provider in ("native", "vllm_c"))
        supports = hook.supports

        # vLLM compares the signatures with its own.
        @wraps(native)
        def implementation(*arguments: Any, **keywords: Any) -> Any:
            return call(own, *arguments, **keywords)

        @wraps(native)
        def supported(*arguments: Any, **keywords: Any) -> bool:
            return hook.operator in self.enabled and supports(*arguments, **keywords)

        op.register_impl(self._provider, supports_args=supported, inplace=op.allow_inplace)(
            implementation
        )
        self._implemented.append(op.name)

    def _derive(self, layer: Any, call: Callable[..., Any]) -> None:
        """Let models have a layer of ours instead of this one; it asks its config which forward."""
        mark, known = f"Tuned{layer.__name__}", layer.name
        config = importlib.import_module("vllm.config")

        def dispatch_forward(self: Any, compile_native: bool) -> Any:
            own = layer.dispatch_forward(self, compile_native)
            compilation = config.get_cached_compilation_config()
            if f"+{mark}" not in compilation.custom_ops:
                return own
            # vLLM says which custom operators a model has none of.
            compilation.enabled_custom_ops.update([mark])
            return lambda x: call(lambda _, x: own(x), self, x)

        derived: Any = type(mark, (layer,), {"dispatch_forward": dispatch_forward})
        layer.register_oot(name=layer.__name__)(derived)
        # Registration gave it another, and users switch it by vLLM's.
        derived.name = known
        self._layers[mark] = known

    def _prefer_ours(self) -> None:
        """Let every config prefer ours, but what the user asked for, and what vLLM would fuse.

        What it prefers is part of the key of vLLM's compilation cache.
        """
        config = importlib.import_module("vllm.config.kernel").KernelConfig
        own = config.set_platform_defaults

        @wraps(own)
        def set_platform_defaults(kernel_config: Any, vllm_config: Any) -> None:
            if not _fuses_with_quantization(vllm_config):
                for name in self._implemented:
                    asked = getattr(kernel_config.ir_op_priority, name)
                    if not asked:
                        asked.append(self._provider)
                custom = vllm_config.compilation_config.custom_ops
                for mark, known in self._layers.items():
                    if not {f"+{mark}", f"-{known}"} & set(custom):
                        custom.append(f"+{mark}")
            own(kernel_config, vllm_config)

        config.set_platform_defaults = set_platform_defaults


def _device_name() -> str:
    platform = importlib.import_module("vllm.platforms").current_platform
    try:
        return str(platform.get_device_name())
    except NotImplementedError:
        return "no GPU"


def _fuses_with_quantization(vllm_config: Any) -> bool:
    """Say whether norms and activations are compiled into one kernel with what quantizes them."""
    model = vllm_config.model_config
    return bool(vllm_config.compilation_config.mode and model and model.quantization)


def _replace(target: str, original: Any, call: Callable[..., Any]) -> None:
    """Replace a function in its module, and in those that have imported it."""

    @wraps(original)
    def ours(*arguments: Any, **keywords: Any) -> Any:
        return call(original, *arguments, **keywords)

    module, _, name = target.rpartition(".")
    setattr(sys.modules[module], name, ours)
    for other, importer in list(sys.modules.items()):
        if other.startswith("vllm.") and importer is not None:
            for known, value in list(vars(importer).items()):
                if value is original:
                    setattr(importer, known, ours)
