"""SGLang in this process: which kernels of a plugin run, and which MoE configs, switched at will.

Nothing of it is a promise of SGLang's: it fits 0.5.17.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from environment import ROOT
from moe_modes import Mode, MoeConfigs

MODELS = ROOT / "benchmarks/models"
FUSED_ROPE = "use_fused_qk_norm_rope"  # of SGLang's layers, asked at each call


class Heard(logging.Handler):
    """What a logger said."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Plugin:
    """The plugin in this process: what it replaced, what it took since the last question."""

    def __init__(self, package: str) -> None:
        from sglang.srt.plugins import load_plugins

        heard = Heard()
        logger = logging.getLogger(package)  # above those of its modules
        logger.setLevel(logging.INFO)
        logger.addHandler(heard)
        load_plugins()
        try:
            self._module = importlib.import_module(f"{package}.sglang")
        except ModuleNotFoundError as error:
            raise SystemExit(f"{package}: {error}; pip install what `tune export` wrote") from None
        self.log = heard.lines
        self.operators = frozenset(self._module.enabled)
        if not self.operators:
            why = "; ".join(self.log) or "SGLang has not loaded it"
            raise SystemExit(f"{package} replaced nothing: {why}")
        self.kernels = tuned_kernels(importlib.import_module(package))
        self._before = self._module.calls()

    def choose(self, operators: frozenset[str]) -> None:
        self._module.enabled.clear()
        self._module.enabled.update(operators)

    def calls(self) -> dict[str, dict[str, int]]:
        """Count calls since the last time, of operators that had any."""
        now, before = self._module.calls(), self._before
        self._before = now
        taken = {
            name: {who: count - before[name].get(who, 0) for who, count in counts.items()}
            for name, counts in now.items()
        }
        return {name: counts for name, counts in taken.items() if any(counts.values())}


class NoPlugin:
    """Stands where there is no plugin."""

    log: tuple[str, ...] = ()
    operators: frozenset[str] = frozenset()
    kernels: Mapping[str, str] = {}

    def choose(self, operators: frozenset[str]) -> None:
        assert not operators

    def calls(self) -> dict[str, dict[str, int]]:
        return {}


class Engine:
    """SGLang's model runner for one model, whose modes can be switched."""

    def __init__(self, asked: argparse.Namespace, plugin: Plugin | NoPlugin, folder: Path) -> None:
        from sglang.benchmark import one_batch
        from sglang.srt.server_args import PortArgs

        self.plugin = plugin
        self._one_batch = one_batch
        server = server_args(asked, folder)
        one_batch.get_tokenizer = lambda *_, **__: None  # tokens are random
        one_batch._set_envs_and_config(server)
        for what in ("moe", "fp8_gemm", "fp4_gemm"):
            getattr(one_batch, f"initialize_{what}_config")(server)
        plugin.choose(frozenset())
        self.moe = MoeConfigs() if asked.moe_configs else None
        self.runner, _ = one_batch.load_model(server, PortArgs.init_new(server), 0, 0)
        self.model = self.runner.torch_runner
        self.decoder = self.model.decode_cuda_graph_runner
        self.prefill: Any = self.model.prefill_cuda_graph_runner
        if not hasattr(self.prefill, "capture_num_tokens"):  # it prefills without graphs
            self.prefill = None
        # Of the pool of memory that all graphs share, PyTorch wants one graph alive at any time.
        self._first = [one.backend for one in (self.decoder, self.prefill) if one is not None]
        self.graph_config = server.cuda_graph_config.to_dict()
        self.attention = server.attention_backend
        randomize(self.model.model)
        self._fused = [one for one in self.model.model.modules() if hasattr(one, FUSED_ROPE)]
        if asked.fused_rope and not any(getattr(one, FUSED_ROPE) for one in self._fused):
            raise SystemExit("--fused-rope: SGLang has no fused norm and rope for this model")

    def use(self, mode: Mode) -> None:
        self.plugin.choose(mode.operators)
        if self.moe is not None:
            self.moe.use(mode.configs)
        for layer in self._fused:
            setattr(layer, FUSED_ROPE, mode.fused_rope)

    def decode_graph(self, mode: Mode, batch: int) -> Any:
        """Capture the decode step of a batch size; return the backend that holds the graph."""
        from sglang.srt.model_executor.runner_backend.utils import resolve_decode_backend
        from sglang.srt.model_executor.runner_utils.capture_mode import model_capture_mode

        self.use(mode)
        self.decoder.capture_bs = [batch]
        self.decoder.backend = resolve_decode_backend(self.decoder)
        # Layers ask for it: norms of queries and keys, say, then run side by side.
        with model_capture_mode():
            self.decoder.capture()
        return self.decoder.backend

    def step(
        self, modes: list[Mode], backends: Mapping[str, Any], tokens: Any, running: Any
    ) -> dict[str, Any]:
        """Fill in what the graphs read; find which of its graphs each mode replays.

        With attention tuned it depends on the lengths, and that takes a step of its own.
        """
        keys: dict[bool, Any] = {}
        attends = {mode.name: "decode_attention" in mode.operators for mode in modes}
        for mode in modes:
            if attends[mode.name] not in keys:
                self.use(mode)
                self.decoder.backend = backends[mode.name]
                self.runner.decode(tokens, running)
                keys[attends[mode.name]] = self.decoder._replay_graph_key
        self.runner.synchronize()
        return {name: keys[one] for name, one in attends.items()}

    def prefill_graph(self, mode: Mode, tokens: int) -> Any:
        """Capture a prefill of so many tokens; None where SGLang runs it without graphs."""
        from sglang.srt.model_executor.runner_backend.utils import resolve_prefill_backend

        self.use(mode)
        if self.prefill is None:
            return None
        self.prefill.capture_num_tokens = [tokens]
        self.prefill.backend = resolve_prefill_backend(self.prefill)
        self.prefill.capture()
        return self.prefill.backend

    def prefill_with(self, graph: Any) -> None:
        """Replay this graph in the next prefills; None where there are none."""
        if graph is not None:
            self.prefill.backend = graph

    def extend(self, batch: int, length: int) -> tuple[Any, Any, Any, float]:
        """Prefill the same random tokens each time; return tokens, logits, batch, microseconds."""
        import numpy

        self.runner.clear()
        numpy.random.seed(3)
        requests = self._one_batch.prepare_synthetic_inputs_for_latency_test(batch, length)
        self.runner.synchronize()
        began = time.perf_counter()
        tokens, logits, running = self.runner.extend(requests)
        self.runner.synchronize()
        return tokens, logits, running, (time.perf_counter() - began) * 1e6


def tuned_kernels(package: Any) -> dict[str, str]:
    """Name the operator of each kernel of a package."""
    tables = [one.table for one in package.OPERATORS.values()]
    return {
        symbol: table.name
        for table in tables
        for variant in table.variants
        for symbol in variant.symbols.values()
    }


def server_args(asked: argparse.Namespace, folder: Path) -> Any:
    """Say what SGLang is started with: its defaults, but for what is measured."""
    from sglang.srt.server_args import ServerArgs

    config = json.loads((MODELS / f"{asked.model}.json").read_text(encoding="utf-8"))
    if asked.layers:
        config["num_hidden_layers"] = asked.layers
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return ServerArgs(
        model_path=str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        mem_fraction_static=asked.memory,
        cuda_graph_bs_decode=sorted(asked.batches),
        cuda_graph_bs_prefill=sorted(asked.prefill) or None,
        disable_prefill_cuda_graph=asked.eager_prefill or not asked.prefill,
        enable_fused_qk_norm_rope=asked.fused_rope,
        max_running_requests=max(256, *asked.batches),
        random_seed=1,
        **asked.server_args,
    )


def randomize(model: Any) -> None:
    """Draw weights of a usual size: SGLang's dummy ones are too small for any layer to matter."""
    import torch

    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif parameter.is_floating_point():
                parameter.normal_(0.0, 0.02)
