"""Ask an engine, in its own Python, which configs it uses.

Run as a program beside the engine, with nothing of ours importable: a question as JSON on standard
input, the answer as JSON on standard output. `used.py` has both sides' meaning.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

Answer = dict[str, Any]
MODULES = {
    ("sglang", "moe"): "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe_triton_config",
    ("sglang", "block_fp8"): "sglang.kernels.ops.quantization.fp8_kernel",
    ("sglang", "product"): "sglang.srt.batch_invariant_ops.batch_invariant_ops",
    ("vllm", "moe"): "vllm.model_executor.layers.fused_moe.fused_moe",
    ("vllm", "block_fp8"): "vllm.model_executor.layers.quantization.utils.fp8_utils",
    ("vllm", "product"): "vllm.model_executor.determinism.batch_invariant",
}
# The function that multiplies, and the kernel that it launches.
MULTIPLIERS = {
    "sglang": ("w8a8_block_fp8_matmul_triton", "_w8a8_block_fp8_matmul"),
    "vllm": ("w8a8_triton_block_scaled_mm", "_w8a8_triton_block_scaled_mm"),
}

# What a product's kernel is launched with.
PRODUCT_KEYS = (
    *("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M"),
    *("num_warps", "num_stages"),
)


class Overheard(logging.Handler):
    """What the engine logs meanwhile."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if (message := record.getMessage()) not in self.messages:
            self.messages.append(message)


class NotingOpen:
    """An `open` for an engine's module that notes what it reads."""

    def __init__(self) -> None:
        self.last: str | None = None

    def __call__(self, path: Any, *arguments: Any, **keywords: Any) -> Any:
        self.last = str(path)
        return Path(path).open(*arguments, **keywords)


class Launched:
    """In place of a Triton kernel: notes the config that it would be launched with."""

    def __init__(self) -> None:
        self.keywords: dict[str, Any] = {}
        self.arg_names: list[str] | None = None
        # What multiplied where this was not launched.
        self.instead = ""

    def __getitem__(self, grid: Any) -> Launched:
        return self

    def __call__(self, *arguments: Any, **keywords: Any) -> None:
        self.keywords = keywords


def answer(question: dict[str, Any]) -> Answer:
    """Import the engine, pretend what the question says, and ask for each number of tokens."""
    engine, kind = question["engine"], question["kind"]
    module: Any = importlib.import_module(MODULES[engine, kind])
    if question["gpu"]:
        pretend_gpu(engine, module, question["gpu"])
    overheard, module.open = Overheard(), NotingOpen()
    logging.getLogger(module.__name__).addHandler(overheard)
    ask = {"moe": moe, "block_fp8": block_fp8, "product": products}[kind]
    with sglang_mode(question["mode"]) if engine == "sglang" else nullcontext():
        found = ask(module, question)
    return {
        **found,
        "version": importlib.import_module(engine).__version__,
        "triton": triton_version(),
        "log": overheard.messages,
    }


def triton_version() -> str:
    """Return the version of Triton beside the engine; "" without one."""
    try:
        return str(importlib.import_module("triton").__version__)
    except ImportError:
        return ""


def pretend_gpu(engine: str, module: Any, name: str) -> None:
    """Let the engine believe that it is on this GPU."""
    if engine == "sglang":
        module.get_device_name = lambda *_: name
        # By this its block-fp8 loader decides what to clamp.
        module._is_cuda = name.startswith("NVIDIA")
    else:
        platforms: Any = importlib.import_module("vllm.platforms")
        platforms.current_platform.get_device_name = lambda *_, **__: name


def sglang_mode(mode: str) -> AbstractContextManager[Any]:
    """Publish the arguments of a server, without which SGLang's functions don't answer."""
    context: Any = importlib.import_module("sglang.srt.runtime_context").get_context()
    found: AbstractContextManager[Any] = context.override_server_args(
        enable_deterministic_inference=mode == "deterministic"
    )
    return found


def moe(module: Any, question: dict[str, Any]) -> Answer:
    """Ask for the configs of both GEMMs of the experts."""
    key = question["key"]
    experts, width, block = key["experts"], key["intermediate"], key["block_shape"]
    # Neither engine's choice depends on the hidden size or on the experts of a token.
    shapes = (experts, 2 * width, 1), (experts, 1, width), 1, key["dtype"]
    sglang = question["engine"] == "sglang"
    more = {"per_channel_quant": key["per_channel"], "return_down_config": True} if sglang else {}
    rows = []
    for tokens in question["tokens"]:
        found = module.try_get_optimal_moe_config(*shapes, tokens, block_shape=block, **more)
        first, down = (found[0], found[1][0]) if sglang else (found, None)
        rows.append({"tokens": tokens, "config": first, "down": down})
    lookup = (experts, width, key["dtype"], *(block or (0, 0)))
    sources = {"source": source_of(module, module.get_moe_configs, lookup)}
    if sglang:
        lookup = (*lookup, key["per_channel"], True)
        sources["down_source"] = source_of(module, module.get_moe_configs, lookup)
    return {"rows": rows, **sources}


def source_of(module: Any, loader: Any, lookup: tuple[Any, ...]) -> str | None:
    """Return the file that a loader reads, or None where it has none."""
    # Engines remember what they loaded, and don't open it again.
    loader.cache_clear()
    module.open.last = None
    return module.open.last if loader(*lookup) else None


def block_fp8(module: Any, question: dict[str, Any]) -> Answer:
    """Call the engine's product with a stand-in for its kernel."""
    torch: Any = importlib.import_module("torch")
    key, engine = question["key"], question["engine"]
    lookup = key["n"], key["k"], *key["block_shape"]
    if question["folder"]:
        # The loader looks beside its module; nothing else asks where that is.
        module.__file__ = str(Path(question["folder"], "loader.py"))
    module.open.last = None
    if question["mode"] == "compiled":
        loader = module.get_w8a8_block_fp8_configs
        compiled = torch.compile(lambda x: (x + 1, loader(*lookup)), backend="eager")
        loaded = compiled(torch.ones(1))[1]
        module.get_w8a8_block_fp8_configs = lambda *_: loaded
    multiplier, kernel = MULTIPLIERS[engine]
    setattr(module, kernel, launched := Launched())
    rows = []
    for tokens in question["tokens"]:
        getattr(module, multiplier)(*operands(torch, tokens, key), key["block_shape"])
        config = {n: launched.keywords[n] for n in PRODUCT_KEYS}
        rows.append({"tokens": tokens, "config": config, "down": None})
    return {"rows": rows, "source": module.open.last}


def operands(torch: Any, tokens: int, key: dict[str, Any]) -> tuple[Any, ...]:
    """Make both matrices and their scales without memory."""
    (n, k), (block_n, block_k) = (key["n"], key["k"]), key["block_shape"]
    columns = -(-k // block_k)
    shapes = (tokens, k), (n, k), (tokens, columns), (-(-n // block_n), columns)
    types = (torch.float8_e4m3fn, torch.float8_e4m3fn, torch.float32, torch.float32)
    pairs = zip(shapes, types, strict=True)
    return tuple(torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in pairs)


def products(module: Any, question: dict[str, Any]) -> Answer:
    """Put a table in place, and have the engine's linear layers multiply with a stand-in kernel."""
    torch: Any = importlib.import_module("torch")
    launched = Launched()
    arguments = getattr(module.matmul_kernel_persistent, "arg_names", None)
    launched.arg_names = arguments if isinstance(arguments, list) else None
    module.matmul_kernel_persistent = launched
    vllm = question["engine"] == "vllm"
    multiply = vllm_layer(module, question) if vllm else sglang_layer(module, launched, question)
    rows = []
    for one in question["products"]:
        w = torch.empty((one["n"], one["k"]), dtype=torch.bfloat16, device="meta")
        for tokens in one["tokens"]:
            launched.keywords, launched.instead = {}, "PyTorch's own product"
            multiply(torch.empty((tokens, one["k"]), dtype=w.dtype, device="meta"), w)
            config = {n: v for n, v in launched.keywords.items() if n in PRODUCT_KEYS}
            by = "" if config else launched.instead
            rows.append({**one, "tokens": tokens, "config": config, "by": by})
    return {"rows": rows}


def register_table(question: dict[str, Any]) -> None:
    """Do as the engine does where the package with the table is installed."""
    sys.path.insert(0, question["folder"])
    package: Any = importlib.import_module(question["package"])
    if triton_version():
        package.register()
        return
    stand_in: Any = ModuleType("triton")
    stand_in.__version__ = question["triton"]
    sys.modules["triton"] = stand_in
    try:
        package.register()
    finally:
        # Others ask for what it has not.
        del sys.modules["triton"]


def vllm_layer(module: Any, question: dict[str, Any]) -> Callable[..., Any]:
    """Return what multiplies in vLLM's linear layers without quantization."""
    interface: Any = importlib.import_module("vllm.platforms.interface")
    platform: Any = importlib.import_module("vllm.platforms").current_platform
    capability = interface.DeviceCapability(*question["capability"])
    platform.get_device_capability = lambda *_, **__: capability
    platform.is_cuda = platform.is_cuda_alike = lambda: True
    module.num_compute_units, module._BLOCK_SIZES_RESOLVED = (lambda *_: 1), True
    register_table(question)
    layers: Any = importlib.import_module("vllm.model_executor.layers.linear")
    method = layers.UnquantizedLinearMethod()
    if question["mode"] == "deterministic":
        return lambda x, w: method.apply(SimpleNamespace(weight=w), x)
    return lambda x, w: x @ w.t()


def sglang_layer(module: Any, launched: Launched, question: dict[str, Any]) -> Callable[..., Any]:
    """Return what SGLang's mode has PyTorch multiply with, where DeepGEMM is there as well."""

    def by_deepgemm(a: Any, b: Any, bias: Any = None) -> Any:
        launched.instead = "DeepGEMM"
        return a @ b

    module._matmul_persistent_deepgemm = by_deepgemm
    module.ENABLE_JIT_DEEPGEMM = module._ENABLE_MM_DEEPGEMM = True
    module.get_device_core_count = lambda *_: 1
    utilities: Any = importlib.import_module("sglang.srt.utils")
    utilities.get_device_name = lambda *_: question["gpu"]
    register_table(question)
    placed: dict[str, Callable[..., Any]] = {"aten::mm": lambda a, b: a @ b}
    if question["mode"] == "deterministic":
        library = SimpleNamespace(impl=lambda name, call, key: placed.update({name: call}))
        module.torch.library.Library = lambda *_: library
        module.get_dispatch_device_backend = lambda: "CUDA"
        module.enable_batch_invariant_mode(enable_bmm=False)
    return lambda x, w: placed["aten::mm"](x, w.t())


def main() -> None:
    # Python puts the program's own folder first, whose modules must not stand for the engine's.
    here = Path(__file__).resolve().parent
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != here]
    # Whatever the engine prints must not be taken for the answer.
    kept = os.dup(1)
    os.dup2(2, 1)
    found = json.dumps(answer(json.load(sys.stdin)))
    with os.fdopen(kept, "w") as result:
        result.write(found)


if __name__ == "__main__":
    main()
