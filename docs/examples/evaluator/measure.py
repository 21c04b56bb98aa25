#!/usr/bin/env python3
"""An evaluator for `tune --device command:`, to be copied and changed.

It reads one request from its standard input and writes one answer to its standard output. Here
g++ compiles the kernel and one core runs it, thread after thread, which is enough for kernels
without shared memory. `built` and `timed` are what you replace: by a compiler and a queue of
your own, say.
"""

import ctypes
import json
import runpy
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

REPEATS = 15
C_TYPES = {"float32": "float", "int32": "int"}
# What CUDA has and C++ has not, as far as these kernels need it.
PRELUDE = """
#define __global__
struct Index { unsigned x = 0, y = 0, z = 0; };
static Index blockIdx, threadIdx, blockDim, gridDim;
"""
LOOP = """
extern "C" void run(void** a) {{
  gridDim = {{{grid}}}; blockDim = {{{block}}};
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) {kernel}({taken});
}}
"""


def describe():
    """Say what the hardware is and what this program can do."""
    return {
        "version": 1,
        "name": "one core, by measure.py",
        "architecture": "cpu",
        "streaming_gbps": 10.0,
        "verifies": True,
        "compares": True,
        "timeout_s": 120.0,
        "limits": {"threads_per_block": 1024},
    }


def built(program, number, folder):
    """Compile one program and return its function; raise `CalledProcessError` where it fails."""
    (launch,) = program["launches"]
    known = {one["name"]: one for one in program["arguments"]}
    places = {name: place for place, name in enumerate(known)}
    taken = ", ".join(
        f"{'*' if known[name]['value'] is not None else ''}"
        f"({C_TYPES[known[name]['dtype']]}*)a[{places[name]}]"
        for name in launch["arguments"]
    )
    sizes = {what: ", ".join(map(str, launch[what])) for what in ("grid", "block")}
    loop = LOOP.format(kernel=launch["kernel"], taken=taken, **sizes)
    source, library = folder / f"{number}.cc", folder / f"{number}.so"
    source.write_text(f"{PRELUDE}\n#line 1\n{program['source']}\n{loop}")
    command = ["g++", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return ctypes.CDLL(str(library)).run


def arrays_of(program, seed):
    """Draw the inputs from the request's seed, which is another one each time."""
    drawn = np.random.default_rng(seed)
    made = {}
    for one in program["arguments"]:
        if one["value"] is not None:
            made[one["name"]] = np.array([one["value"]], one["dtype"])
        elif one["role"] == "input":
            made[one["name"]] = drawn.standard_normal(one["shape"]).astype(one["dtype"])
        else:
            made[one["name"]] = np.full(one["shape"], np.nan, one["dtype"])
    return made


def timed(function, arrays):
    """Run once and return microseconds."""
    pointers = (ctypes.c_void_p * len(arrays))(*(one.ctypes.data for one in arrays.values()))
    started = time.perf_counter()
    function(pointers)
    return (time.perf_counter() - started) * 1e6


def fault(request, program, arrays):
    """Compare the outputs with the reference in float64; say what is wrong, "" where nothing."""
    wide = {name: one.astype("float64") for name, one in arrays.items()}
    reference = runpy.run_path(request["reference"])["reference"]
    expected = reference(np, wide, request["workload"])
    for one in program["arguments"]:
        if one["role"] != "output":
            continue
        name, allowed = one["name"], one["tolerance"]
        bound = allowed["absolute"] + allowed["relative"] * np.abs(expected[name])
        wrong = ~(np.abs(wide[name] - expected[name]) <= bound)
        if wrong.any():
            return f"{name} is wrong in {wrong.sum()} of {wrong.size} elements"
    return ""


def answered(request, folder):
    """Compile, run and verify every program of a request, then time what it asks for."""
    ready = []
    for number, program in enumerate(request["programs"]):
        try:
            function = built(program, number, folder)
        except subprocess.CalledProcessError as error:
            return {"status": "compile", "reason": error.stderr[-2000:]}
        arrays = arrays_of(program, request["seed"])
        timed(function, arrays)
        if wrong := fault(request, program, arrays):
            return {"status": "incorrect", "reason": wrong}
        ready.append((function, arrays))
    answer = {"status": "correct", "verified": True}
    if request["purpose"] == "compare":
        answer["rounds_us"] = [[timed(*one) for one in ready] for _ in range(request["rounds"])]
    elif request["purpose"] != "verify":
        answer["times_us"] = [timed(*ready[0]) for _ in range(REPEATS)]
    return answer


def main():
    request = json.load(sys.stdin)
    if request["purpose"] == "describe":
        answer = describe()
    else:
        with tempfile.TemporaryDirectory() as folder:
            answer = answered(request, Path(folder))
    json.dump(answer, sys.stdout)


main()
