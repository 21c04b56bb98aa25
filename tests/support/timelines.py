"""Timelines as torch 2.11's profiler and nsys 2025 write them, small."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

Event = dict[str, Any]

# One layer of Llama-3 8B at batch 64 in SGLang 0.5.17: kernel, grid, us, and the PyTorch operator
# that launches it, with the shapes of its inputs. The times are a 32nd of a measured step's.
NORM = (
    "kernel_cutlass_kernel_flashinfernormkernelsfused_add_rmsnormFusedAddRMSNormKernel_object_at__"
    "tensorptrbf16gmemalign128o409640961_tensorptrbf16gmemalign128o409640961_0"
)
SILU = (
    "void (anonymous namespace)::act_and_mul_kernel<__nv_bfloat16, ((anonymous namespace)::"
    "ActivationKind)0, true, false>((anonymous namespace)::ActivationParams)"
)
GEMM = "nvjet_tst_64x64_64x13_4x1_v_bz_splitK_TNT"
ATTENTION = (
    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::Mainloop>>>()"
)
Kernel = tuple[str, int, float, str, list[list[int]]]
LAYER: tuple[Kernel, ...] = (
    (NORM, 32, 3.03, "", []),
    (GEMM, 96, 28.0, "aten::mm", [[64, 4096], [4096, 6144]]),
    ("void fused_rope_kernel<128l, true>(FusedRopeParams)", 264, 2.06, "", []),
    ("void store_kvcache<2048l>(StoreKVCacheParams)", 64, 1.63, "", []),
    (ATTENTION, 132, 102.84, "sgl_kernel::fwd", [[64, 32, 128]]),
    (GEMM, 64, 20.0, "aten::mm", [[64, 4096], [4096, 4096]]),
    (
        "void splitKreduce_kernel<32, 16, int>(T1)",
        256,
        2.59,
        "aten::mm",
        [[64, 4096], [4096, 4096]],
    ),
    (NORM, 32, 3.03, "", []),
    (GEMM, 132, 56.0, "aten::mm", [[64, 4096], [4096, 28672]]),
    (SILU, 448, 2.16, "sglang::_run_activation_inplace", [[], [64, 28672], [64, 14336]]),
    (GEMM, 64, 28.1, "aten::mm", [[64, 14336], [14336, 4096]]),
)


def torch_trace(path: Path, events: Iterable[Event], gpu: str = "NVIDIA H200") -> Path:
    """Write events as `export_chrome_trace` does."""
    whole = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": gpu, "numSms": 132}],
        "record_shapes": 1,
        "displayTimeUnit": "ms",
        "traceEvents": list(events),
        "traceName": str(path),
    }
    path.write_text(json.dumps(whole, indent=1), encoding="utf-8")
    return path


def operator(number: int, name: str, dims: Sequence[Any] = (), **more: Any) -> Event:
    """Make the event of a PyTorch operator; without `dims` no shapes were recorded."""
    shapes = {"Input Dims": list(dims), "Concrete Inputs": [""] * len(dims)} if dims else {}
    args = {"External id": number, "Record function id": 0, "Ev Idx": number} | shapes | more
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": 1.0,
        "dur": 1.0,
        "args": args,
    }


def kernel(name: str, start_us: float, us: float, **args: Any) -> Event:
    """Make the event of a kernel; `external` and `graph` say what launched it."""
    told = {
        "queued": 0,
        "device": 0,
        "context": 1,
        "stream": 7,
        "grid": [1, 1, 1],
        "block": [128, 1, 1],
    } | args
    if "external" in told:
        told["External id"] = told.pop("external")
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": start_us,
        "dur": us,
        "args": told,
    }


def graph_launch(correlation: int) -> Event:
    args = {"cbid": 311, "correlation": correlation}
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaGraphLaunch",
        "ts": 0.5,
        "dur": 1.0,
        "args": args,
    }


def replayed_layer(path: Path) -> Path:
    """Write a layer as a CUDA graph replays it: its kernels know of no operator."""
    events, now = [graph_launch(9)], 100.0
    for name, grid, us, _, _ in LAYER:
        events.append(kernel(name, now, us, grid=[grid, 1, 1], correlation=9))
        now += us + 0.6
    return torch_trace(path, events)


def eager_layer(path: Path) -> Path:
    """Write the same layer without a graph, with the shapes."""
    events, now = [], 100.0
    for number, (name, grid, us, called, dims) in enumerate(LAYER, 1):
        known = {}
        if called:
            events.append(operator(number, called, dims))
            known = {"external": number}
        events.append(kernel(name, now, us, grid=[grid, 1, 1], correlation=number, **known))
        now += us + 12.0
    return torch_trace(path, events)


TABLES = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, memoryBandwidth INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
  start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL,
  correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
  shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER, cacheConfig INTEGER,
  registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL,
  gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,
  blockZ INTEGER NOT NULL, graphNodeId INTEGER);
"""
COPIES = """
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (
  start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, streamId INTEGER, bytes INTEGER);
"""
CLOSED_GRAPH = """
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (
  start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, streamId INTEGER,
  graphId INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (5000, 9000, 0, 7, 1);
"""


def nsys_export(
    path: Path,
    kernels: Iterable[tuple[str, int, int, int]],
    more: str = "",
    node: int | None = None,
) -> Path:
    """Write kernels (name, start and end in ns, grid) as `nsys export --type sqlite` does."""
    with closing(sqlite3.connect(path)) as database:
        database.executescript(TABLES + more)
        database.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200', 4917000000000)")
        for number, (name, start, end, grid) in enumerate(kernels):
            database.execute("INSERT INTO StringIds VALUES (?, ?)", (number, name))
            row = (start, end, 0, 1, None, 7, number, 1, number, number, None, 0, 0, 32)
            sizes = (grid, 1, 1, 128, 1, 1, node)
            marks = ", ".join("?" * len(row + sizes))
            database.execute(
                f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({marks})",  # noqa: S608
                row + sizes,
            )
        database.commit()
    return path
