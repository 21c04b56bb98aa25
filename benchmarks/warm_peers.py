"""Compile what peers take for many workloads at once, so that nothing is compiled in the rounds.

    python benchmarks/warm_peers.py NAME [--peer deep-gemm ...] [--workload M=1,N=576,K=7168 ...]
                                         [--operator SCALES=block] [--processes 8]

NAME is an operator. Each peer is called once on each workload, in processes of their own: what
nvcc, NVRTC and Triton make is in their caches then. What torch.compile finds fastest meanwhile is
not kept, because the calls of the others disturb it: who is timed chooses again, among kernels that
are compiled.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tuner.device.layout import lay_out
from tuner.device.reference import chosen_peers, load_peers
from tuner.model.errors import InputError
from tuner.model.kernel import KernelSpec, Workload
from tuner.space.choices import chosen_operators
from tuner.space.load import load_definition, workload_from_text

ROOT = Path(__file__).resolve().parents[1]
PROCESSES = 8
# The names that PyTorch gives to types which it calls otherwise.
TORCH_DTYPES = {"float8_e4m3": "float8_e4m3fn"}


def warm(
    space: Path, name: str, workload: Workload, operators: Mapping[str, str], choices: str
) -> str:
    """Call one peer once, in this process; say how long it took or why it could not be called."""
    began = time.perf_counter()
    spec = load_definition(space).chosen(operators).spec
    try:
        import torch

        without_choices(choices)
        tensors = arrays(torch, spec, workload, operators)
        with torch.no_grad():
            load_peers(spec.reference)[name](tensors, dict(workload.values), **operators)
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001 - whoever is timed meets it again and tells it
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return f"{time.perf_counter() - began:.1f} s"


def arrays(
    torch: Any, spec: KernelSpec, workload: Workload, operators: Mapping[str, str]
) -> dict[str, Any]:
    """Make what the peer is called with: zeros of the right types and shapes."""
    layout = lay_out(spec, {**workload.values, **operators})
    return {
        slot.name: torch.zeros(
            slot.shape,
            dtype=getattr(torch, TORCH_DTYPES.get(slot.dtype, slot.dtype)),
            device="cuda",
        )
        for slot in layout.slots
    }


def without_choices(folder: str) -> None:
    """Have torch.compile keep its kernels where it always does, and its choices in `folder`."""
    from torch._inductor.runtime.cache_dir_utils import triton_cache_dir

    os.environ["TRITON_CACHE_DIR"] = triton_cache_dir(0)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def warm_all(
    name: str,
    peers: Sequence[str],
    workloads: Sequence[str],
    asked: Mapping[str, str],
    processes: int,
) -> None:
    """Call every peer on every workload, a line for each."""
    space = ROOT / f"search_spaces/sglang/{name}.yaml"
    spec = load_definition(space).spec
    operators = chosen_operators(spec, asked)
    wanted = [workload_from_text(spec, text) for text in workloads]
    jobs = [
        (peer, workload)
        for peer in chosen_peers(spec.reference, peers)
        for workload in wanted or (*spec.tuned, *spec.held_out)
    ]
    # A process for each call: what one compiles for a shape another must not take for any shape.
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(
            min(processes, len(jobs)),
            mp_context=get_context("spawn"),
            max_tasks_per_child=1,
        ) as pool,
    ):
        calls = [pool.submit(warm, space, peer, one, operators, folder) for peer, one in jobs]
        for (peer, workload), call in zip(jobs, calls, strict=True):
            print(f"{peer} {workload.key}: {call.result()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--peer", action="append", default=[], help="repeatable; all by default")
    parser.add_argument("--workload", action="append", default=[], help="repeatable")
    parser.add_argument("--operator", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    asked = parser.parse_args()
    choices = {name: value for name, _, value in (text.partition("=") for text in asked.operator)}
    try:
        warm_all(asked.name, asked.peer, asked.workload, choices, asked.processes)
    except InputError as error:
        parser.exit(2, f"Error: {error}\n")


if __name__ == "__main__":
    main()
