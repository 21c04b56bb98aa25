"""The engines' own batch-invariant Triton product, as installed: launcher, inputs, reference.

SGLang's and vLLM's deterministic modes multiply tokens by the weights of linear layers with it.
"""

from contextlib import contextmanager
from functools import cache
from importlib import import_module

MODULES = {
    "sglang": "sglang.srt.batch_invariant_ops.batch_invariant_ops",
    "vllm": "vllm.model_executor.determinism.batch_invariant",
}
NEEDED = {
    "sglang": "pip install 'torch==2.11.0' 'triton==3.6.0' 'sglang==0.5.17' 'sglang-kernel==0.4.5'"
    " (docs/peers.md)",
    "vllm": "pip install 'vllm==0.32.0'",
}
# What counts a GPU's multiprocessors; where there is none, as many as an H200 has.
CORES = {"sglang": "get_device_core_count", "vllm": "num_compute_units"}
H200_CORES = 132
# Of the rows of x in `extreme`: their sums stay between the smallest and the largest floats.
ROW_SCALES = (2.0**-60, 2.0**-10, 1.0, 2.0**50)


@cache
def engine(name):
    """Import the module of an engine's product, once a process."""
    try:
        import torch

        module = import_module(MODULES[name])
    except ImportError as error:
        reason = f"{name}'s invariant product cannot be imported: {error}; {NEEDED[name]}"
        raise ImportError(reason) from error
    if not torch.cuda.is_available():
        setattr(module, CORES[name], lambda *_: H200_CORES)
    return module


class Configured:
    """A kernel of Triton's that is launched with a config in place of its caller's."""

    def __init__(self, kernel, config):
        self.kernel, self.config = kernel, config

    def __getitem__(self, grid):
        launch = self.kernel[grid]
        return lambda *given, **named: launch(*given, **{**named, **self.config})


@contextmanager
def replaced(module, name, by):
    own = getattr(module, name)
    setattr(module, name, by)
    try:
        yield
    finally:
        setattr(module, name, own)


def launch(config, tensors, axes, ENGINE="sglang"):
    """Enqueue the product as a linear layer does; `config` None is what the engine does by itself.

    SGLang has its config written in, and goes past it to DeepGEMM where that is there; vLLM asks
    for it by the sizes.
    """
    module, x, w = engine(ENGINE), tensors["x"], tensors["w"].t()
    if config is None:
        return {"out": module.matmul_persistent(x, w)}
    if ENGINE == "vllm":
        with replaced(module, "_get_matmul_config", lambda *_: dict(config)):
            return {"out": module.matmul_persistent(x, w)}
    kernel = Configured(module.matmul_kernel_persistent, config)
    with replaced(module, "matmul_kernel_persistent", kernel):
        return {"out": module._matmul_persistent_triton(x, w)}


def reference(xp, inputs, axes, ENGINE="sglang"):
    """Compute `x @ w.T` in float64; `xp` is NumPy or CuPy."""
    return {"out": inputs["x"] @ inputs["w"].T}


def inputs(xp, rng, axes, fill, ENGINE="sglang"):
    """Draw weights whose sums are near 1 for every K.

    For `extreme` all of x and each row of w have one sign, and rows of x scales of their own: where
    large numbers cancel, what is left depends on the order of the sum.
    """
    rows, columns, depth = axes["M"], axes["N"], axes["K"]
    w = rng.standard_normal((columns, depth), dtype=xp.float32) * xp.float32(depth**-0.5)
    if fill != "extreme":
        return {"w": w}
    choice = (rng.random((rows, 1), dtype=xp.float32) * len(ROW_SCALES)).astype(xp.int32)
    scales = xp.asarray(ROW_SCALES, dtype=xp.float32)[xp.minimum(choice, len(ROW_SCALES) - 1)]
    x = xp.abs(rng.standard_normal((rows, depth), dtype=xp.float32)) * scales
    signs = xp.where(rng.random((columns, 1), dtype=xp.float32) < 0.5, -1.0, 1.0)
    return {"x": x, "w": xp.abs(w) * signs.astype(xp.float32)}
