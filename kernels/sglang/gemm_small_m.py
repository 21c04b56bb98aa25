"""The float64 reference of gemm_small_m, weights whose sums are near 1, and its peers."""

import ctypes
import random
from functools import cache
from importlib import import_module

MOST_TOKENS = 16  # that SGLang's operators take
MOST_EXPERTS = 512
ROUNDS = 8  # of the first stage in which cuBLASLt's algorithms compete
# What its operator for one row takes.
GEMV_COLUMNS, GEMV_DEPTH, GEMV_STEP = (64, 65536), (512, 17408), 512
# Of the rows of x in `extreme`: their sums stay between the smallest and the largest floats.
ROW_SCALES = (2.0**-100, 2.0**-10, 1.0, 2.0**50)


def reference(xp, inputs, axes, OUT="bf16"):
    """Compute `x @ w.T` in float64; `xp` is NumPy or CuPy."""
    return {"out": inputs["x"] @ inputs["w"].T}


def inputs(xp, rng, axes, fill):
    """Draw w as models have it, so that sums of K products are about 1 for every K.

    For `extreme` a row of x has one sign and a scale of its own, and a row of w one sign: where
    large numbers cancel, what is left depends on the order of the sum.
    """
    columns, depth = axes["N"], axes["K"]
    w = rng.standard_normal((columns, depth), dtype=xp.float32) * depth**-0.5
    if fill != "extreme":
        return {"w": w}
    x = xp.abs(rng.standard_normal((axes["M"], depth), dtype=xp.float32))
    scales = xp.asarray(ROW_SCALES, dtype=xp.float32)
    choice = (rng.random((axes["M"], 1), dtype=xp.float32) * len(ROW_SCALES)).astype(xp.int32)
    signs = xp.where(rng.random((columns, 1), dtype=xp.float32) < 0.5, -1.0, 1.0)
    signs = signs.astype(xp.float32)
    return {"x": x * scales[xp.minimum(choice, len(ROW_SCALES) - 1)], "w": xp.abs(w) * signs}


def pytorch(tensors, axes, OUT="bf16"):
    """What linear layers call: cuBLAS."""
    return blas("cublas", tensors, OUT)


def cublaslt(tensors, axes, OUT="bf16"):
    """The first algorithm that cuBLASLt proposes."""
    return blas("cublaslt", tensors, OUT)


def blas(library, tensors, OUT):
    import torch

    torch.backends.cuda.preferred_blas_library(library)
    x, w, out = tensors["x"], tensors["w"], tensors["out"]
    if OUT == "fp32":
        return {"out": torch.mm(x, w.t(), out_dtype=torch.float32)}
    torch.mm(x, w.t(), out=out)
    return None


def cublaslt_tuned(tensors, axes, OUT="bf16"):
    """The algorithm that costs least of those that cuBLASLt proposes."""
    lt_product(axes["M"], axes["N"], axes["K"], OUT).fastest(tensors)(tensors)


@cache
def lt_product(rows, columns, depth, OUT):
    return LtProduct(rows, columns, depth, OUT)


class LtProduct:
    """One product of cuBLASLt, by the numbers of cublasLt.h of CUDA 12 and 13."""

    PROPOSALS = 40
    WORKSPACE_BYTES = 32 << 20
    RESULT_BYTES = (
        96  # cublasLtMatmulHeuristicResult_t: an algorithm of 64 bytes, then its workspace
    )
    COMPUTE_FLOAT32, FLOAT32, BF16, TRANSPOSED = 68, 0, 14, 1

    def __init__(self, rows, columns, depth, OUT):
        import torch

        self._library = lt_library()
        self._handle = self._made("cublasLtCreate")
        self._product = self._made("cublasLtMatmulDescCreate", self.COMPUTE_FLOAT32, self.FLOAT32)
        self._set("cublasLtMatmulDescSetAttribute", self._product, 3, ctypes.c_int(self.TRANSPOSED))
        out_type = self.FLOAT32 if OUT == "fp32" else self.BF16
        # By columns, as cuBLAS has them: out, of columns x rows, is w, transposed, times x.
        self._layouts = [
            self._made(
                "cublasLtMatrixLayoutCreate",
                kind,
                *map(ctypes.c_uint64, (high, wide)),
                ctypes.c_int64(high),
            )
            for kind, high, wide in (
                (self.BF16, depth, columns),
                (self.BF16, depth, rows),
                (out_type, columns, rows),
                (out_type, columns, rows),
            )
        ]
        self._workspace = torch.empty(self.WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        self._algorithms = self._proposed()
        self._fastest = None

    def fastest(self, tensors):
        """Choose an algorithm when first asked for one; return its call."""
        if self._fastest is None:
            import torch

            w, x = tensors["w"], tensors["x"].clone()
            cold_bytes = 4 * torch.cuda.get_device_properties(w.device).L2_cache_size
            weights = [w.clone() for _ in range(-(-cold_bytes // w.nbytes))]
            calls = [{**tensors, "x": x, "w": one} for one in weights]
            graphs = [self._captured(calls, tensors["x"], one) for one in self._algorithms]
            self._fastest = self._algorithms[cheapest(graphs)]
        return lambda given: self._multiply(given, self._fastest)

    def _captured(self, calls, x, algorithm):
        """Capture calls as a model makes them: with cold weights, and x just written."""
        import torch

        self._multiply(calls[0], algorithm)  # the first call loads its kernel
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for given in calls:
                given["x"].copy_(x)
                self._multiply(given, algorithm)
        return graph

    def _multiply(self, tensors, algorithm):
        import torch

        w, x, out = (ctypes.c_void_p(tensors[name].data_ptr()) for name in ("w", "x", "out"))
        one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        left, right, before, after = self._layouts
        self._call(
            "cublasLtMatmul",
            *(self._handle, self._product, ctypes.byref(one), w, left, x, right),
            *(ctypes.byref(zero), out, before, out, after, algorithm),
            *(ctypes.c_void_p(self._workspace.data_ptr()), ctypes.c_size_t(self.WORKSPACE_BYTES)),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )

    def _proposed(self):
        preference = self._made("cublasLtMatmulPreferenceCreate")
        limit = ctypes.c_uint64(self.WORKSPACE_BYTES)
        self._set("cublasLtMatmulPreferenceSetAttribute", preference, 1, limit)
        results = ctypes.create_string_buffer(self.PROPOSALS * self.RESULT_BYTES)
        count = ctypes.c_int()
        self._call(
            "cublasLtMatmulAlgoGetHeuristic",
            *(self._handle, self._product, *self._layouts, preference, self.PROPOSALS, results),
            ctypes.byref(count),
        )
        starts = range(0, count.value * self.RESULT_BYTES, self.RESULT_BYTES)
        return [ctypes.create_string_buffer(results.raw[i : i + 64], 64) for i in starts]

    def _made(self, name, *arguments):
        made = ctypes.c_void_p()
        self._call(name, ctypes.byref(made), *arguments)
        return made

    def _set(self, name, owner, attribute, value):
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self._call(name, owner, attribute, ctypes.byref(value), size)

    def _call(self, name, *arguments):
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} failed with status {status}")


def cheapest(graphs):
    """Find the graph that takes the least: all of a stage in turn, in shuffled order.

    The better quarter stays for the next stage, of four times as many rounds.
    """
    from tuner.model.statistics import cost_us

    order, left, rounds = random.Random(7), list(range(len(graphs))), ROUNDS  # noqa: S311, an order
    while len(left) > 1:
        times_ms = {one: [] for one in left}
        for _ in range(rounds):
            for one in order.sample(left, len(left)):
                times_ms[one].append(replay_ms(graphs[one]))
        left = sorted(left, key=lambda one: cost_us(times_ms[one]))[: -(-len(left) // 4)]
        rounds *= 4
    return left[0]


def replay_ms(graph):
    """Time a replay; one before it, since an event on an idle stream is early."""
    import torch

    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    begun.record()
    graph.replay()
    ended.record()
    ended.synchronize()
    return begun.elapsed_time(ended)


def lt_library():
    """The library that PyTorch has loaded."""
    for version in (13, 12):
        try:
            return ctypes.CDLL(f"libcublasLt.so.{version}")
        except OSError:
            continue
    raise ImportError("no libcublasLt.so.13 or libcublasLt.so.12")


@cache
def compiled(OUT):
    import torch

    def linear(x, w):
        return torch.mm(x, w.t()).to(torch.float32 if OUT == "fp32" else x.dtype)

    return torch.compile(linear, dynamic=False, mode="max-autotune-no-cudagraphs")


def torch_compile(tensors, axes, OUT="bf16"):
    """The best that PyTorch's compiler finds, its own Triton kernels among them."""
    return {"out": compiled(OUT)(tensors["x"], tensors["w"])}


def sgl_aot(tensors, axes, OUT="bf16"):
    """SGLang's prebuilt operator for DeepSeek-V3's first projections."""
    from tuner.device.reference import torch_operators

    x, w, out = tensors["x"], tensors["w"], tensors["out"]
    if axes["M"] > MOST_TOKENS or (axes["N"], axes["K"]) != (2112, 7168) or OUT == "fp32":
        raise NotImplementedError("up to 16 rows, 2112 columns, 7168 deep, bf16")
    operators = torch_operators("sgl_kernel", "sm90/common_ops.*")
    operators.dsv3_fused_a_gemm.default(out, x, w.t())


def sgl_fused_a(tensors, axes, OUT="bf16"):
    """SGLang's operator for DeepSeek's first projections, compiled for each shape."""
    from sglang.kernels.jit.utils import is_arch_support_pdl

    # The package has a function of the module's name.
    module = import_module("sglang.kernels.ops.gemm.dsv3_fused_a_gemm")

    rows, columns, depth = axes["M"], axes["N"], axes["K"]
    if rows > MOST_TOKENS or columns % 16 or depth % 256 or OUT == "fp32":
        raise NotImplementedError("up to 16 rows, N a multiple of 16, K of 256, bf16")
    run = module.dsv3_fused_a_gemm_module(depth, columns, is_arch_support_pdl()).dsv3_fused_a_gemm
    run(tensors["x"], tensors["w"].t(), tensors["out"])


def sgl_tiny(tensors, axes, OUT="bf16"):
    """SGLang's operator for routers, compiled for each shape and number of rows."""
    from sglang.kernels.ops.gemm.tiny_gemm import tiny_n_gemm_bf16

    rows, columns, depth = axes["M"], axes["N"], axes["K"]
    if rows > MOST_TOKENS or columns > MOST_EXPERTS or depth % 256 or depth // 8 > 1024:
        raise NotImplementedError("up to 16 rows, 512 columns, K a multiple of 256 up to 8192")
    tiny_n_gemm_bf16(tensors["x"], tensors["w"], tensors["out"], max_m=rows)


def sgl_gemv(tensors, axes, OUT="bf16"):
    """SGLang's operator for one row, compiled for each shape; 0.5.23 has it, 0.5.17 does not."""
    columns, depth = axes["N"], axes["K"]
    sizes = ((columns, *GEMV_COLUMNS), (depth, *GEMV_DEPTH))
    fits = all(least <= size <= most for size, least, most in sizes)
    if axes["M"] > 1 or OUT == "fp32" or columns % 8 or depth % GEMV_STEP or not fits:
        raise NotImplementedError("one row, 64 to 65,536 columns, K a multiple of 512, bf16")
    from sglang.kernels.ops.gemm.hopper_bf16_gemv import hopper_bf16_gemv

    return {"out": hopper_bf16_gemv(tensors["x"], tensors["w"])}


production = "pytorch"
peers = {
    "pytorch": pytorch,
    "cublaslt": cublaslt,
    "cublaslt-tuned": cublaslt_tuned,
    "torch.compile": torch_compile,
    "sgl-aot": sgl_aot,
    "sgl-fused-a": sgl_fused_a,
    "sgl-tiny": sgl_tiny,
    "sgl-gemv": sgl_gemv,
}
