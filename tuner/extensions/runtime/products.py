"""Put a table of batch-invariant products where an engine's deterministic mode takes configs from.

A copy of this file is part of every exported table.
"""

from __future__ import annotations

import importlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

logger = logging.getLogger(__name__)
CONFIGS_OF_VLLM = "vllm.model_executor.determinism.batch_invariant_configs"
OPERATORS_OF_SGLANG = "sglang.srt.batch_invariant_ops.batch_invariant_ops"
# What tells that a kernel of SGLang's is the one that a table is of.
FIRST_ARGUMENTS = ["a_ptr", "b_ptr", "c_ptr", "bias_ptr", "M", "N", "K"]
Config = Mapping[str, int]
# By (N, K): by the most rows that it serves, a config; the last serves more.
Shapes = Mapping[tuple[int, int], Mapping[int, Config]]


class TableError(RuntimeError):
    """A table that can't be used here: of another GPU or Triton, or an engine that has moved on."""


@dataclass(frozen=True)
class TableOrigin:
    """The package that a table is in, and what its configs were measured with."""

    package: str
    engine: str
    tested: str
    gpu: str
    triton: str
    # Whether SGLang multiplied by DeepGEMM where the table was found faster.
    deepgemm: bool = False

    def find(self, module: str, *names: str) -> Any:
        """Import what the engine takes configs with; raise `TableError` where that has moved."""
        try:
            found = importlib.import_module(module)
            missing = [name for name in names if not hasattr(found, name)]
        except ImportError as error:
            missing = [str(error)]
        if missing:
            raise TableError(
                f"{self.package} puts its table into {module}, and {self.engine} "
                f"{metadata.version(self.engine)} has no such place: {', '.join(missing)}; it was "
                f"tested with {self.tested}: use that, or pip uninstall {self.package}"
            )
        return found

    def require_same(self, gpu: str) -> None:
        """Raise `TableError` for a table of another GPU or Triton."""
        triton = str(importlib.import_module("triton").__version__).partition("+")[0]
        if (gpu, triton) != (self.gpu, self.triton):
            raise TableError(
                f"{self.package} is a table of {self.gpu} with Triton {self.triton}, and this is "
                f"{gpu} with Triton {triton}: make one here with `tune fleet --invariant`, or pip "
                f"uninstall {self.package}"
            )


class VllmTable:
    """Shapes by vLLM's families of GPUs, in vLLM's own types; `read` makes them once it is here."""

    def __init__(self, origin: TableOrigin, read: Callable[[], Mapping[str, Any]]) -> None:
        self.origin, self._read = origin, read

    def register(self) -> None:
        """Add the table to vLLM's own where its batch-invariant mode is on, and ask it once."""
        if not importlib.import_module("vllm.envs").VLLM_BATCH_INVARIANT:
            return
        configs = self.origin.find(
            CONFIGS_OF_VLLM,
            "_BATCH_INVARIANT_MATMUL_TUNED_CONFIGS",
            "_TUNED_MATMUL_CONFIGS_RESOLVED",
            "_MatmulMConfig",
            "_MatmulShapeConfig",
            "_get_matmul_config",
            "resolve_tuned_matmul_configs",
        )
        platform = importlib.import_module("vllm.platforms").current_platform
        self.origin.require_same(platform.get_device_name())
        shapes: dict[tuple[int, int], Any] = {}
        for family, table in self._read().items():
            configs._BATCH_INVARIANT_MATMUL_TUNED_CONFIGS.setdefault(family, {}).update(table)
            shapes |= table
        configs._TUNED_MATMUL_CONFIGS_RESOLVED = False
        configs.resolve_tuned_matmul_configs()
        bfloat16 = importlib.import_module("torch").bfloat16
        for n, k in shapes:
            if not configs._get_matmul_config(1, n, k, bfloat16, {}):
                raise TableError(
                    f"{self.origin.package}: vLLM does not read its table for N={n}, K={k}: pip "
                    f"uninstall {self.origin.package}"
                )
        logger.info("%s: vLLM has configs for %d shapes", self.origin.package, len(shapes))


class SglangTable:
    """Shapes in SGLang's names. It has one config written in for each dtype, and reads no table."""

    def __init__(self, origin: TableOrigin, shapes: Shapes) -> None:
        self.origin, self._shapes = origin, shapes
        self._calls = Counter[str](table=0, original=0)
        self._registered = False

    def calls(self) -> dict[str, int]:
        """Count the launches with a config of the table, and with SGLang's own.

        What a CUDA graph replays was counted when it was captured.
        """
        return dict(self._calls)

    def register(self) -> None:
        """Have its batch-invariant product launched with the table, past DeepGEMM where needed."""
        if self._registered:
            return
        operators = self.origin.find(
            OPERATORS_OF_SGLANG,
            "matmul_kernel_persistent",
            "matmul_persistent",
            "_matmul_persistent_triton",
            "_matmul_persistent_deepgemm",
        )
        kernel = operators.matmul_kernel_persistent
        # None where nothing says them.
        names = getattr(kernel, "arg_names", None) or FIRST_ARGUMENTS
        if [*names[: len(FIRST_ARGUMENTS)]] != FIRST_ARGUMENTS:
            raise TableError(
                f"{self.origin.package}: the first arguments of SGLang's matmul_kernel_persistent "
                f"are {', '.join(names[: len(FIRST_ARGUMENTS)])}; it was tested with "
                f"{self.origin.tested}: use that, or pip uninstall {self.origin.package}"
            )
        utilities = self.origin.find("sglang.srt.utils", "get_device_name")
        self.origin.require_same(utilities.get_device_name())
        switches = "ENABLE_JIT_DEEPGEMM", "_ENABLE_MM_DEEPGEMM"
        here = all(getattr(operators, name, False) for name in switches)
        if here != self.origin.deepgemm:
            text = "%s: was found faster than SGLang %s DeepGEMM, and here that is %s: make a table"
            words = ("without", "on") if here else ("with", "off")
            logger.warning(
                f"{text} here with `tune fleet --invariant`", self.origin.package, *words
            )
        by_deepgemm = operators._matmul_persistent_deepgemm

        def multiply(a: Any, b: Any, bias: Any = None) -> Any:
            listed = (b.shape[1], b.shape[0]) in self._shapes
            by = operators._matmul_persistent_triton if listed else by_deepgemm
            return by(a=a, b=b, bias=bias)

        operators._matmul_persistent_deepgemm = multiply
        operators.matmul_kernel_persistent = _TabledKernel(kernel, self)
        self._registered = True

    def config(self, dtype: str, rows: int, n: int, k: int) -> Config:
        """Choose the config of so many rows, and count; empty where SGLang's own serves."""
        shape = self._shapes.get((n, k)) if dtype == "torch.bfloat16" else None
        self._calls["table" if shape else "original"] += 1
        if not shape:
            return {}
        if self._calls["table"] == 1:  # SGLang sets logging up after it has loaded its plugins
            text = "%s: SGLang's invariant products have configs for %d shapes"
            logger.info(text, self.origin.package, len(self._shapes))
        return shape[next((most for most in shape if most >= rows), max(shape))]


class _TabledKernel:
    """SGLang's kernel, launched with the table's configs."""

    def __init__(self, kernel: Any, table: SglangTable) -> None:
        self._kernel, self._table = kernel, table

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        launch = self._kernel[grid]

        def launched(*given: Any, **named: Any) -> Any:
            config = self._table.config(str(given[0].dtype), *given[4:7])
            return launch(*given, **{**named, **config})

        return launched
