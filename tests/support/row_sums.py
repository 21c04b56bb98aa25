"""A kernel that sums rows in the order that a parameter names: some orders depend on other rows."""

from __future__ import annotations

from pathlib import Path

HONEST = "alone"
# What decides the order, as an expression that is true where the row is summed backwards.
ORDERS = {
    "alone": "false",
    "row_index": "t % 2 == 1",
    "split_by_m": "T > 16",
    "grid": "gridDim.x > 2",
    "neighbour": "t + 1 < T && x[(t + 1) * K] > 0.0f",
    "odd_sizes": "(T & (T - 1)) != 0",
    "many_rows": "T > 256",
    "last_row": "t == T - 1",
    "alignment": "(size_t)(x + t * K) % 64 == 0",
    "large_value": "any_of(T * K, [&](int i) { return x[i] > 3.0f; })",
}
# What the search does not see: of sizes between those that are tried, above all that are listed,
# and of neighbours that are louder by far.
UNSEEN = {
    "between": "T > 64 && T < 128",
    "beyond": "T > 300",
    "louder": "any_of(T, [&](int r) { return power(x + r * K, K) > 4 * power(x + t * K, K); })",
}
SOURCE = """
extern "C" __global__ void sum_rows(float* y, const float* x, int T, int K, float* total,
                                    int* done) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= T) return;
  float sum = 0.0f;
  for (int k = 0; k < K; ++k) sum += x[t * K + k];
  y[t] = sum;
}
"""
TEMPLATE = """
template <typename Holds>
__device__ bool any_of(int count, Holds holds) {
  for (int i = 0; i < count; ++i) {
    if (holds(i)) return true;
  }
  return false;
}
__device__ float power(const float* row, int K) {
  float sum = 0.0f;
  for (int k = 0; k < K; ++k) sum += row[k] * row[k];
  return sum;
}
constexpr int kChunk = @{ chunk }@, kAtomic = @{ 1 if order == "atomics" else 0 }@;
extern "C" __global__ void sum_rows(float* y, const float* x, int T, int K, float* total,
                                    int* done) {
  const int t = (kAtomic ? blockIdx.x / 4 : blockIdx.x) * blockDim.x + threadIdx.x;
  if (t >= T) return;
  if (kAtomic) {
    // A quarter of the row in each of four blocks, in whatever order they come.
    const int part = blockIdx.x % 4;
    float sum = 0.0f;
    for (int k = part * K / 4; k < (part + 1) * K / 4; ++k) sum += x[t * K + k];
    atomicAdd(&total[t], sum);
    __threadfence();
    if (atomicAdd(&done[t], 1) < 3) return;
    y[t] = total[t];
    total[t] = 0.0f;
    done[t] = 0;
    return;
  }
  const bool backwards = @{ condition }@;
  float sum = 0.0f;
  for (int first = 0; first < K; first += kChunk) {
    float part = 0.0f;
    for (int k = first; k < min(first + kChunk, K); ++k) {
      part += x[t * K + (backwards ? K - 1 - k : k)];
    }
    sum += part;
  }
  y[t] = sum;
}
"""
REFERENCE = """
def reference(xp, inputs, axes):
    return {"y": inputs["x"].sum(axis=1)}
"""
SPACE = """
version: 1
kernel: sum_rows
source: sum_rows.cu
reference: sum_rows.py
template: sum_rows.cu.j2
axes: [T, K]
arguments:
  - {name: y, dtype: float32, shape: [T], role: output}
  - {name: x, dtype: float32, shape: [T, K], extreme: {reason: sums of numbers far apart}}
  - {name: T, dtype: int32, value: T}
  - {name: K, dtype: int32, value: K}
  - {name: total, dtype: float32, shape: [T], role: scratch, zeroed: true}
  - {name: done, dtype: int32, shape: [T], role: scratch, zeroed: true}
workloads: {tuned: [{T: 4, K: 100}, {T: 300, K: 100}], held_out: [{T: 40, K: 100}]}
invariant: {T: [y]}
baseline: {launch: [{kernel: sum_rows, grid: ["ceil_div(T, 32)"], block: [32]}]}
parameters:
  order: ORDERS
  chunk: [1, 8, 32]
  block: [32, 64]
constraints: ["order == 'alone' or (chunk == 8 and block == 32)"]
default: {order: DEFAULT, chunk: 8, block: 32}
launch:
  - kernel: sum_rows
    grid: ["ceil_div(T, block) * (4 if order == 'atomics' else 1)"]
    block: [block]
tolerance: {y: {relative: 1.0e-4, absolute: 1.0e-4}}
"""


def row_sums(folder: Path, *orders: str, edit: tuple[str, str] = ("", "")) -> Path:
    """Write a project whose configs sum in these orders; the first is the default's."""
    known = ORDERS | UNSEEN
    condition = " || ".join(
        f'(@{{ "true" if order == "{name}" else "false" }}@ && ({text}))'
        for name, text in ((one, known.get(one, "false")) for one in orders)
    )
    space = SPACE.replace("ORDERS", f"[{', '.join(orders)}]").replace("DEFAULT", orders[0])
    for name, text in {
        "sum_rows.cu": SOURCE,
        "sum_rows.cu.j2": TEMPLATE.replace("@{ condition }@", condition),
        "sum_rows.py": REFERENCE,
        "sum_rows.yaml": space.replace(*edit) if edit[0] else space,
    }.items():
        (folder / name).write_text(text.lstrip(), encoding="utf-8")
    return folder / "sum_rows.cu"
