"""`<tune/tensor.h>` and `<tune/wgmma.h>` for GPUs: each function compiles, and ptxas takes it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.compiler.base import CompileRequest, compiler_options, ptxas_resources
from tuner.compiler.includes import header_digest, own_headers, refused_include
from tuner.compiler.nvrtc import Nvrtc
from tuner.extensions.export.variants import with_own_headers
from tuner.process.protocol import Message

DATA = Path(__file__).parents[1] / "extensions" / "cpu" / "data"
TYPES = ("bf16", "f16", "tf32", "e4m3")

AMPERE = """
  ldmatrix(r1, s), ldmatrix(r2, s), ldmatrix(r4, s);
  ldmatrix_trans(r1, s), ldmatrix_trans(r2, s), ldmatrix_trans(r4, s);
  mma<bf16>(d, r4, r2), mma<f16>(d, r4, r2), mma<tf32>(d, r4, r2), r1[0] = to_tf32(d[0]);
  cp_async<4>(s, y), cp_async<8>(s, y), cp_async<16>(s, y, 0);
  cp_async_commit(), cp_async_wait<1>();
  y[1] = l2_evict_first() + l2_evict_last();
  named_barrier_sync(1, 64), named_barrier_arrive(2, 64);
  add_release(u, atomic_add_acq_rel(u, 1)), store_release(u, load_acquire(u));
"""
HOPPER = """
  mbarrier_init(s, 1), fence_mbarrier_init(), fence_proxy_async();
  mbarrier_arrive(s), mbarrier_arrive_expect_tx(s, 16), mbarrier_wait(s, mbarrier_try_wait(s, 0));
  bulk_load(s, y, 16, s), bulk_load(s, y, 16, s, p), bulk_prefetch(y, 16);
  bulk_store(y, s, 16), bulk_commit(), bulk_wait_read<1>(), bulk_wait<0>();
  tensor_prefetch_map(map), tensor_prefetch_2d(map, 1, 2);
  tensor_load_2d(s, map, 1, 2, s), tensor_load_2d(s, map, 1, 2, s, p);
  tensor_load_3d(s, map, 1, 2, 3, s), tensor_load_3d(s, map, 1, 2, 3, s, p);
  tensor_store_2d(map, s, 1, 2), tensor_store_3d(map, s, 1, 2, 3);
  mbarrier_inval(s);
  griddepcontrol_wait(), griddepcontrol_launch_dependents();
  cluster_arrive_relaxed(), cluster_wait(), cluster_sync(), cluster_size();
  tensor_multicast_2d(s, map, 1, 2, s, 3), cluster_mbarrier_arrive(map_shared(s, 1));
  cluster_store_async(map_shared(s, cluster_rank()), cluster_load(s), s);
"""


def kernel(body: str) -> str:
    return f"""#include <tune/wgmma.h>
using namespace tune;
extern "C" __global__ void __launch_bounds__(128) k(
    float* y, u32* u, const __grid_constant__ TensorMap map) {{
  extern __shared__ __align__(1024) unsigned char shared[];
  const u32 s = shared_address(shared);
  u32 r1[1] = {{}}, r2[2] = {{}}, r4[4] = {{}};
  float d[4] = {{}};
  const u64 p = 0;
  {body}
  y[0] = d[0] + r1[0] + r2[0] + r4[0] + p;
}}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Message]:
    nvrtc = Nvrtc(tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("scratch"))

    def compile_one(source: str, architecture: str = "sm_90a", name: str = "k") -> Message:
        options = compiler_options(CompileRequest(source, (name,), architecture))
        return nvrtc.compile(source, [name], options, "")

    return compile_one


@pytest.mark.parametrize(
    ("architecture", "body"),
    [
        ("sm_80", AMPERE),
        ("sm_89", f"{AMPERE} mma<e4m3>(d, r4, r2), mma<e5m2>(d, r4, r2);"),
        ("sm_90", AMPERE + HOPPER),
        ("sm_90a", f"{AMPERE} {HOPPER} setmaxnreg_inc<168>(), setmaxnreg_dec<40>();"),
        ("sm_100a", AMPERE + HOPPER),
    ],
)
def test_every_wrapper_assembles(
    compiled: Callable[..., Message], architecture: str, body: str
) -> None:
    reply, cubin, _ = compiled(kernel(body), architecture)
    assert cubin, reply["log"]


@pytest.mark.parametrize("dtype", TYPES)
def test_every_width_of_wgmma_assembles_without_being_serialized(
    compiled: Callable[..., Message], dtype: str
) -> None:
    source = f"""#include <tune/wgmma.h>
using namespace tune;
template <int N>
__device__ void both(float* y, u64 m, const u32 (&a)[4]) {{
  float d[N / 2];
  wgmma_fence();
  wgmma<{dtype}>(d, m, m, false);
  wgmma<{dtype}>(d, a, m, true);
  wgmma_commit(), wgmma_wait<0>(), wgmma_keep(d);
  y[threadIdx.x] = d[N / 2 - 1];
}}
template <int... kI>
struct Widths {{
  static __device__ void all(float* y, u64 m, const u32 (&a)[4]) {{ (both<8 * kI>(y, m, a), ...); }}
}};
extern "C" __global__ void __launch_bounds__(128) k(float* y, u64 m) {{
  const u32 a[4] = {{1, 2, 3, 4}};
  Widths<{", ".join(str(i) for i in range(1, 33))}>::all(y, m, a);
}}
"""
    reply, cubin, _ = compiled(source)
    assert cubin, reply["log"]
    used = ptxas_resources(reply["log"])["k"]
    assert used.serialized_wgmma == ""


def test_ptxas_says_where_registers_are_used_before_the_wait(
    compiled: Callable[..., Message],
) -> None:
    body = """
  const u64 m = matrix_descriptor<128>(s);
  wgmma_fence(), wgmma<bf16>(d, m, m, false), wgmma_commit();
  for (int i = 0; i < 4; ++i) d[i] *= y[i];
  wgmma<bf16>(d, m, m, true), wgmma_commit(), wgmma_wait<0>();"""
    reply, _, _ = compiled(kernel(body))
    assert "wait_group is injected" in ptxas_resources(reply["log"])["k"].serialized_wgmma


@pytest.mark.parametrize("kind", ["mma", "wgmma"])
def test_the_gemms_of_the_host_device_are_kernels_for_a_gpu(
    compiled: Callable[..., Message], kind: str
) -> None:
    source = (DATA / f"gemm_{kind}.cu").read_text("utf-8")
    reply, cubin, _ = compiled(source, name="gemm")
    assert cubin, reply["log"]
    assert ptxas_resources(reply["log"])["gemm"].serialized_wgmma == ""


@pytest.mark.parametrize(
    ("architecture", "body", "said"),
    [
        ("sm_75", "cp_async_commit();", "needs compute capability 8.0"),
        ("sm_80", "bulk_commit();", "needs compute capability 9.0"),
        ("sm_90", "wgmma_fence();", "instructions of sm_90a alone: use mma elsewhere"),
        ("sm_100a", "wgmma_fence();", "instructions of sm_90a alone: use mma elsewhere"),
        ("sm_90a", "wgmma<e5m2>(d, p, p, true);", "wgmma takes bf16, f16, tf32 or e4m3"),
    ],
)
def test_what_an_architecture_lacks_is_a_sentence(
    compiled: Callable[..., Message], architecture: str, body: str, said: str
) -> None:
    reply, cubin, _ = compiled(kernel(body), architecture)
    assert not cubin
    assert said in reply["log"]


def test_both_devices_have_the_same_functions() -> None:
    host = Path(__file__).parents[3] / "tuner/extensions/cpu/headers"
    for name, text in own_headers().items():
        gpu, cpu = (
            set(re.findall(r"(?:TUNE_\w+|inline|constexpr|^|>)\s*[\w&]+ (\w+)\(", one, re.M))
            for one in (text, (host / name).read_text("utf-8"))
        )
        others = {
            "mma_as",
            "narrow",
            "TUNE_OUT",
            "volatile",
            "static_assert",
            "alignas",
            "atomicAdd",
        }
        assert gpu - others == cpu - others


def test_a_source_that_includes_them_is_told_by_their_text() -> None:
    source = "#include <tune/wgmma.h>\n"
    assert refused_include(source) is None
    assert header_digest(source, ()) != header_digest("#include <tune/tensor.h>\n", ())
    assert header_digest("#include <cuda_fp8.h>\n", ()) == ""


def test_an_export_holds_each_once(compiled: Callable[..., Message]) -> None:
    source = "#include <tune/tensor.h>\n" + kernel("mma<bf16>(d, r4, r2); wgmma_fence();")
    whole = with_own_headers(source)
    assert "#include" not in whole
    assert whole.count("struct alignas(64) TensorMap") == 1
    reply, cubin, _ = compiled(f"namespace inside {{\n{whole}\n}}", name="inside::k")
    assert cubin, reply["log"]


def test_cuda_h_has_the_type_of_a_tensor_map(compiled: Callable[..., Message]) -> None:
    source = kernel("").replace("TensorMap map", "CUtensorMap map")
    reply, cubin, _ = compiled(f"#include <cuda.h>\n{source}")
    assert cubin, reply["log"]
