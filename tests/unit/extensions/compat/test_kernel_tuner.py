"""Scripts in the shape of Kernel Tuner's, with the one line changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opencl_programs import needs_opencl

from tuner.compat.kernel_tuner import run_kernel, tune_kernel
from tuner.device.select import gpu_count
from tuner.model.errors import DeviceError, InputError, KernelError

ADD = """
__global__ void add(float* out, const float* left, const float* right, int n) {
  int i = blockIdx.x * block_size_x + threadIdx.x;
  if (i < n) out[i] = left[i] + right[i];
}
"""
ADD_CL = """
__kernel void add(__global float* out, __global const float* left, __global const float* right,
                  int n) {
  int i = get_global_id(0);
  if (i < n) out[i] = left[i] + right[i];
}
"""
N = 500
RNG = np.random.default_rng(0)
LEFT, RIGHT = (RNG.standard_normal(N).astype(np.float32) for _ in range(2))
ARGUMENTS = [np.zeros(N, np.float32), LEFT, RIGHT, np.int32(N)]
ANSWER = [LEFT + RIGHT, None, None, None]
PARAMETERS, ONE = {"block_size_x": [32, 64]}, {"block_size_x": 64}


def tune_add(source: Any = ADD, **changed: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    parameters = changed.pop("parameters", PARAMETERS)
    given = {"device": "host", **changed}
    return tune_kernel("add", source, N, ARGUMENTS, parameters, **given)


@pytest.mark.parametrize(
    ("source", "device"),
    [(ADD, "host"), pytest.param(ADD_CL, "opencl", marks=needs_opencl)],
    ids=["cuda", "opencl"],
)
def test_vector_add_gives_a_row_for_each_config_and_says_where(source: str, device: str) -> None:
    metrics = {"GB/s": lambda row: 12e-6 * N / row["time"], "twice": "time * 2"}
    rows, env = tune_add(source, device=device, answer=ANSWER, metrics=metrics)
    assert [row["block_size_x"] for row in rows] == [32, 64]
    for row in rows:
        assert row["time"] == pytest.approx(np.median(row["times"]))
        assert row["GB/s"] == pytest.approx(12e-6 * N / row["time"])
        assert row["twice"] == 2 * row["time"]
    assert env["best_config"] == min(rows, key=lambda row: row["time"])
    assert env["device_name"]
    json.dumps([rows, env])


@needs_opencl
def test_an_input_that_a_kernel_writes_to_is_a_fault() -> None:
    spoiled = ADD_CL.replace("if (i < n) out", "((__global float*)left)[0] = 3; if (i < n) out")
    rows, env = tune_add(spoiled, device="opencl", answer=ANSWER)
    assert rows == []
    assert "changed its input 'argument1'" in env["failures"][0]["reason"]


def test_blocks_that_no_device_has_are_no_configs() -> None:
    rows, env = tune_add(parameters={"block_size_x": [2048, 32]}, answer=ANSWER)
    assert [row["block_size_x"] for row in rows] == [32]
    assert env["failures"] == []
    with pytest.raises(InputError, match="no config keeps"):
        tune_add(parameters={"block_size_x": [2048]})


def test_run_kernel_returns_the_arguments_as_they_are_afterwards() -> None:
    out, *others = run_kernel("add", ADD, N, ARGUMENTS, {"block_size_x": 64}, device="host")
    np.testing.assert_array_equal(out, ANSWER[0])
    assert all(a is b for a, b in zip(others, ARGUMENTS[1:], strict=True))
    with pytest.raises(KernelError, match="compile"):
        run_kernel("add", ADD.replace("if", "iff"), N, ARGUMENTS, ONE, device="host")


WRONG_AT_64 = ADD.replace("left[i] + right[i]", "left[i] + right[i] * (block_size_x < 64 ? 1 : 2)")


def test_configs_that_are_wrong_against_the_answer_are_left_out_and_named() -> None:
    rows, env = tune_add(WRONG_AT_64, answer=ANSWER)
    assert [row["block_size_x"] for row in rows] == [32]
    (failure,) = env["failures"]
    assert (failure["block_size_x"], failure["status"]) == (64, "incorrect")
    assert "argument 0: [0] is" in failure["reason"]


def test_without_an_answer_configs_agree_with_the_first_one() -> None:
    rows, env = tune_add(WRONG_AT_64)
    assert [row["block_size_x"] for row in rows] == [32]
    assert "verify=False" in env["failures"][0]["reason"]
    rows, _ = tune_add(WRONG_AT_64, verify=False)
    assert [row["block_size_x"] for row in rows] == [32, 64]


def test_verify_is_asked_with_the_answer_the_outputs_and_atol() -> None:
    asked = []

    def verify(answer: Any, outputs: Any, atol: float | None = None) -> bool:
        asked.append((answer[0], outputs[1:], atol))
        return bool(np.allclose(answer[0], outputs[0].sum(), rtol=1e-3))

    answer = [float(np.sum(ANSWER[0])), None, None, None]
    rows, _ = tune_add(WRONG_AT_64, answer=answer, verify=verify, atol=0.5)
    assert [row["block_size_x"] for row in rows] == [32]
    assert {(one[0], one[2]) for one in asked} == {(answer[0], 0.5)}
    assert asked[0][1] == [None, None, None]
    rows, _ = tune_add(WRONG_AT_64, answer=answer, verify=lambda answer, outputs: True)
    assert len(rows) == 2


MATMUL = """
#define N 32
__global__ void matmul(float* c, const float* a, const float* b) {
  int x = blockIdx.x * block_size_x * tile_x + threadIdx.x;
  int y = blockIdx.y * block_size_y + threadIdx.y;
  #pragma unroll loop_unroll_factor_t
  for (int t = 0; t < tile_x; t++) {
    float sum = 0;
    for (int k = 0; k < N; k++) sum += a[y * N + k] * b[k * N + x + t * block_size_x];
    c[y * N + x + t * block_size_x] = sum;
  }
}
"""


def test_matmul_keeps_to_restrictions_of_every_kind() -> None:
    a, b = (RNG.standard_normal((32, 32)).astype(np.float32) for _ in range(2))
    parameters = {
        "block_size_x": [8, 16],
        "block_size_y": [4, 8, 16],
        "tile_x": [1, 2],
        "loop_unroll_factor_t": [0, 2],
    }
    rows, env = tune_kernel(
        *("matmul", MATMUL, (32, 32), [np.zeros_like(a), a, b], parameters),
        grid_div_x=["block_size_x", "tile_x"],
        grid_div_y=lambda p: p["block_size_y"],
        restrictions=[
            "block_size_x == block_size_y * tile_x",
            lambda p: p["loop_unroll_factor_t"] <= p["tile_x"],
        ],
        answer=[a @ b, None, None],
        atol=1e-4,
        device="host",
    )
    assert env["failures"] == []
    assert [tuple(row.values())[:4] for row in rows] == [
        (8, 4, 2, 0),
        (8, 4, 2, 2),
        (8, 8, 1, 0),
        (16, 8, 2, 0),
        (16, 8, 2, 2),
        (16, 16, 1, 0),
    ]


CONVOLUTION = """
__constant__ float weights[3 * 3];
extern "C" __global__ void convolve(float* out, const float* in) {
  int x = blockIdx.x * bx + threadIdx.x, y = blockIdx.y * by + threadIdx.y;
  if (x >= 30 || y >= 30) return;
  float sum = 0;
  for (int j = 0; j < 3; j++)
    for (int i = 0; i < 3; i++) sum += weights[3 * j + i] * in[(y + j) * 32 + x + i];
  out[y * 30 + x] = sum;
}
"""


def test_a_convolution_reads_constant_memory_and_its_blocks_have_other_names() -> None:
    image, weights = (RNG.standard_normal(n).astype(np.float32) for n in ((32, 32), (3, 3)))
    patches = np.lib.stride_tricks.sliding_window_view(image, (3, 3))
    answer = [np.einsum("yxji,ji->yx", patches, weights), None]
    rows, env = tune_kernel(
        *("convolve", CONVOLUTION, (30, 30)),
        *([np.zeros((30, 30), np.float32), image], {"bx": [8, 16], "by": [2]}),
        block_size_names=["bx", "by"],
        cmem_args={"weights": weights},
        answer=answer,
        atol=1e-5,
        device="host",
    )
    assert env["failures"] == []
    assert len(rows) == 2


REDUCTION = """
extern __shared__ float partial[];
__global__ void reduce(float* sums, const float* x, int n) {
  float sum = 0;
  for (int i = blockIdx.x * block_size_x + threadIdx.x; i < n; i += gridDim.x * block_size_x)
    sum += x[i];
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int half = block_size_x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];
}
"""


def test_a_reduction_launches_as_many_blocks_as_a_parameter_says() -> None:
    rows, env = tune_kernel(
        *("reduce", REDUCTION, "num_blocks"),
        [np.zeros(4, np.float32), LEFT, np.int32(N)],
        {"block_size_x": [32, 64], "num_blocks": [1, 4]},
        grid_div_x=[],
        smem_args={"size": lambda p: 4 * p["block_size_x"]},
        answer=[np.sum(LEFT), None, None],
        verify=lambda answer, found, atol: np.isclose(answer[0], np.sum(found[0]), atol=1e-3),
        device="host",
    )
    assert env["failures"] == []
    assert len(rows) == 4


HISTOGRAM = """
__global__ void histogram(int* bins, const unsigned char* x, int n) {
  for (int i = blockIdx.x * block_size_x + threadIdx.x; i < n; i += gridDim.x * block_size_x)
    atomicAdd(&bins[x[i]], 1);
}
"""


def test_a_histogram_adds_to_what_its_bins_hold() -> None:
    x = RNG.integers(0, 16, N).astype(np.uint8)
    bins = np.full(16, 5, np.int32)
    rows, env = tune_kernel(
        *("histogram", HISTOGRAM, N, [bins, x, np.int32(N)], {"block_size_x": [32], "per": [1, 8]}),
        grid_div_x=["block_size_x", "per"],
        answer=[np.bincount(x, minlength=16) + 5, None, None],
        device="host",
    )
    assert env["failures"] == []
    assert len(rows) == 2


def test_a_cache_is_gone_on_with_and_one_of_another_kernel_refused(tmp_path: Path) -> None:
    kept = tmp_path / "add"
    first, _ = tune_add(cache=kept, parameters={"block_size_x": [32, 64]})
    again, _ = tune_add(cache=kept, parameters={"block_size_x": [32, 64, 128]})
    assert again[:2] == first
    assert [row["block_size_x"] for row in again] == [32, 64, 128]
    assert len(json.loads((tmp_path / "add.json").read_text())["cache"]) == 3
    with pytest.raises(InputError, match="another problem"):
        tune_add(WRONG_AT_64, cache=kept)
    kept = tmp_path / "wrong"
    tune_add(WRONG_AT_64, cache=kept, parameters={"block_size_x": [32]})
    rows, env = tune_add(WRONG_AT_64, cache=kept, parameters={"block_size_x": [32, 64]})
    assert [row["block_size_x"] for row in rows] == [32]
    assert [row["block_size_x"] for row in env["failures"]] == [64]


def test_a_cache_of_kernel_tuners_own_is_read_and_its_failures_are_tried_again(
    tmp_path: Path,
) -> None:
    kept = tmp_path / "add.json"
    rows = {
        "32": {"block_size_x": 32, "time": 1.5, "times": [1.0, 2.0]},
        "64": {"block_size_x": 64, "time": "RuntimeFailedConfig"},
    }
    header = {"kernel_name": "add", "tune_params_keys": ["block_size_x"], "cache": rows}
    kept.write_text(json.dumps(header)[:-2] + ",")  # as a run leaves it that was killed
    first, second = tune_add(cache=kept)[0]
    assert first["time"] == 1.5
    assert second["time"] != 1.5
    kept.write_text("[")
    with pytest.raises(InputError, match="is no cache"):
        tune_add(cache=kept)


def test_sources_are_texts_functions_and_files_and_take_macros(tmp_path: Path) -> None:
    (tmp_path / "size.h").write_text("#define SIZE block_size_x\n")
    file = tmp_path / "add.cu"
    file.write_text('#include "size.h"\n' + ADD.replace("block_size_x", "SIZE"))
    assert len(tune_add(str(file), answer=ANSWER)[0]) == 2
    assert len(tune_add([file, "other.cu"], answer=ANSWER)[0]) == 2

    def generate(parameters: dict[str, Any]) -> str:
        return ADD.replace("block_size_x", str(parameters["block_size_x"]))

    assert len(tune_add(generate, answer=ANSWER, defines={})[0]) == 2
    width = {"WIDTH": lambda p: str(p["block_size_x"])}
    source = ADD.replace("block_size_x", "WIDTH")
    rows, _ = tune_add(source, answer=ANSWER, defines=width, compiler_options=["-O3"])
    assert len(rows) == 2


@pytest.mark.parametrize("strategy", ["random_sample", "genetic_algorithm"])
def test_a_strategy_keeps_to_its_budget(strategy: str) -> None:
    parameters = {"block_size_x": [32, 64], "unused": [1, 2, 3, 4]}
    options = {"max_fevals": 3}
    rows, _ = tune_add(parameters=parameters, strategy=strategy, strategy_options=options, seed=1)
    assert len(rows) == 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"texmem_args": {"t": LEFT}}, "textures are not supported"),
        ({"observers": [object()]}, "leave them out"),
        ({"simulation_mode": True}, "tune compare"),
        ({"strategy": object()}, "a search of your own"),
        ({"lang": "Fortran"}, "CUDA, HIP or OpenCL"),
        ({"smem_args": {"carveout": 1}}, "there is `size`"),
        ({"cmem_args": {"weights": LEFT}}, "declares nowhere"),
        ({"restrictions": [3]}, "neither a text nor a function"),
        ({"restrictions": ["block_size < 4"]}, "undefined name 'block_size'"),
        ({"restrictions": ["block_size_x < 4"]}, "no config keeps"),
        ({"compiler_options": ["--keep"]}, "compiler option --keep"),
        ({"objective": "GFLOP/s"}, "is no metric"),
    ],
)
def test_what_means_nothing_here_is_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said.replace("`", ".")):
        tune_add(**given)


@pytest.mark.parametrize("wrong", [5, np.array([], np.float32), np.zeros(4, np.complex64)])
def test_arguments_that_no_kernel_takes_are_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="argument3"):
        tune_kernel("add", ADD, N, [*ARGUMENTS[:3], wrong], PARAMETERS, device="host")


def test_a_template_is_instantiated_with_parameters() -> None:
    source = ADD.replace("__global__", "template <typename T, int kBlock>\n__global__")
    source = source.replace("float", "T").replace("block_size_x", "kBlock")
    rows, env = tune_kernel(
        *("add<float, block_size_x>", source, N, ARGUMENTS, PARAMETERS),
        answer=ANSWER,
        device="host",
    )
    assert env["failures"] == []
    assert len(rows) == 2


def test_numbers_of_64_bits_arrive_as_they_are() -> None:
    kernel = """__global__ void add(long long* y, const long long* x, const bool* more) {
      y[threadIdx.x] += x[threadIdx.x] + more[threadIdx.x];
    }"""
    x = np.array([2**62 + 1, -(2**62) - 3, 5])
    y = np.array(7)
    given = [np.array([1, 2, 3]), x, np.array([True, False, True])]
    found = run_kernel("add", kernel, 1, given, {"block_size_x": 3}, device="host")
    np.testing.assert_array_equal(found[0], x + np.array([2, 2, 4]))
    single = "__global__ void set(long long* y) { *y *= 2; }"
    assert run_kernel("set", single, 1, [y], {"block_size_x": 1}, device="host")[0] == 14


@pytest.mark.skipif(gpu_count() > 0, reason="for where there is no GPU")
def test_without_a_gpu_the_cpu_is_named() -> None:
    with pytest.raises(DeviceError, match='device="host" runs'):
        tune_add(device=0)


def test_what_gives_other_numbers_each_time_is_no_measure_for_others() -> None:
    kernel = """__global__ void count(int* y, int* calls) {
      y[0] = block_size_x < 64 ? (int)clock64() : 7;
    }"""
    given = [np.zeros(1, np.int32), np.zeros(1, np.int32)]
    rows, env = tune_kernel("count", kernel, 1, given, PARAMETERS, device="host")
    assert [row["block_size_x"] for row in rows] == [64]
    assert [one["block_size_x"] for one in env["failures"]] == [32]
