"""What a thread could do at once: offered where the accesses allow it, and nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tuner.compiler.base import CompileRequest
from tuner.compiler.pool import NvrtcPool
from tuner.extensions.draft.drafting import Draft, draft
from tuner.source import parse_source

VEC = ("vec", "streaming")
GUARDED = "int i = blockIdx.x * blockDim.x + threadIdx.x;"
ROWS = "for (int c = threadIdx.x; c < n; c += blockDim.x)"
GRID = "for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x)"


def drafted(body: str, parameters: str = "float* y, const float* x, int n") -> Draft:
    text = (
        f"__global__ void k({parameters})\n{{\n{body}\n}}\n"
        "void f(float* y, const float* x, int n) { k<<<(n + 255) / 256, 256>>>(y, x, n); }\n"
    )
    return draft(parse_source(text, Path("k.cu")))


@pytest.mark.parametrize(
    ("body", "parameters"),
    [
        (f"{GUARDED} if (i < n) y[i] = x[i];", ("block_size", *VEC, "items")),
        (f"{GUARDED} if (i >= n) return; y[i] = x[i];", ("block_size", *VEC, "items")),
        (f"{GUARDED} if (i < n) {{ float v = x[i]; y[i] = v; }}", ("block_size", *VEC, "items")),
        (f"{ROWS} y[blockIdx.x * n + c] = x[blockIdx.x * n + c];", ("block_size", *VEC, "unroll")),
        (f"{GRID} y[i] += x[i];", ("block_size", *VEC, "items", "unroll")),
        # a pair of neighbours: one of them begins at no multiple
        (f"{GUARDED} if (i < n) y[i] = x[i] + x[i + 1];", ("block_size", *VEC, "items")),
        # an index that the body names
        (f"{ROWS} {{ const int i = blockIdx.x * n + c; y[i] = x[i]; }}",
         ("block_size", *VEC, "unroll")),
        # one that it goes on from
        (f"{ROWS} {{ int i = blockIdx.x * n + c; y[i] = x[i]; i += 3; y[i] = 1; }}",
         ("block_size", "unroll")),
        # nothing that lies side by side
        (f"{GUARDED} if (i < n) y[i * 3] = x[i * 3];", ("block_size", "items")),
        # written for some elements alone
        (f"{GRID} if (i % 2) y[i] = 1;", ("block_size", "items", "unroll")),
        # what a thread has to itself, or waits for
        (f"{ROWS} y[threadIdx.x] += x[c];", ("block_size", "unroll")),
        (f"{ROWS} {{ y[c] = x[c]; __syncthreads(); }}", ("block_size", "unroll")),
        (f"{ROWS} {{ if (x[c] < 0) break; y[c] = x[c]; }}", ("block_size", "unroll")),
        (f"float kept[4]; int k = 0; {ROWS} kept[k++] = x[c];", ("block_size", "unroll")),
        # a loop of another order reads what this one writes
        (f"{ROWS} y[c] = x[c];\nfor (int c = threadIdx.x; c < n; c += 7) y[c] += 1;",
         ("block_size", "unroll")),
        # blocks that know which they are
        (f"{GUARDED} if (i < n) y[i] = x[i] + blockIdx.x;", ("block_size",)),
    ],
)  # fmt: skip
def test_what_is_offered_follows_from_the_accesses(body: str, parameters: tuple[str, ...]) -> None:
    assert drafted(body).parameters == ("block_size", "min_blocks", *parameters[1:])


@pytest.mark.parametrize(
    "body",
    [
        f"float s = 0; {ROWS} {{ if (x[c] > 0) s += x[c]; else s = 0; y[c] = s; }}",
        f"int count = 0; {ROWS} {{ y[c] = x[c] * count; count++; }}",
        f"float v = 0; {ROWS} {{ if (x[c] > 0) v = x[c]; y[c] = v; }}",
        f"float v = 0; {ROWS} {{ if (x[c] > 0) {{ v = x[c]; }} y[c] = v; }}",
        f"int o = 0; {ROWS} {{ y[o] = x[c]; o++; }}",
    ],
)
def test_a_loop_that_hands_a_state_on_keeps_its_threads(body: str) -> None:
    assert drafted(body).parameters == ("unroll",)


@pytest.mark.parametrize(
    "body",
    [
        f"int k; {ROWS} {{ float s = 0; for (k = 0; k < 4; k++) s += x[c]; y[c] = s; }}",
        f"float v; {ROWS} {{ v = x[c]; if (v < 0) v = 0; y[c] = v; }}",
    ],
)
def test_what_each_pass_sets_first_is_no_state(body: str) -> None:
    assert "block_size" in drafted(body).parameters


def test_a_loop_that_hands_an_index_on_keeps_its_threads_and_its_loads() -> None:
    body = f"int o = blockIdx.x * n; {ROWS} {{ y[o + c] = x[o + c]; o += 4; }}"
    assert drafted(body).parameters == ("unroll",)


@pytest.mark.parametrize(
    "body",
    [
        f"{GUARDED} if (i < n) y[i] = x[i];",
        f"{GUARDED} if (i < n) {{ y[i] = x[i]; }}",
        "const int t = threadIdx.x;\n  int i = blockIdx.x * blockDim.x + t;\n"
        "  if (i >= n) return;\n  const float v = x[i];\n  y[i] = v;",
        f"const float* row = x + blockIdx.x * n;\n  {ROWS} {{ y[blockIdx.x * n + c] = row[c]; }}",
        f"{GRID}\n    y[i] += x[i];",
        f"{ROWS} {{\n    const int r = blockIdx.x, i = r * n + c;\n    y[i] = x[i];\n  }}",
    ],
)
def test_the_widest_config_compiles(compiler: NvrtcPool, body: str) -> None:
    made = drafted(body)
    text = re.sub(r"//%.*\n", "", made.template)
    for name, value in made.widest.items():
        text = text.replace(f"@{{ {name} }}@", str(value))
    done = compiler.submit(CompileRequest(text, ("k",), "sm_90a")).result()
    assert done.error == ""
    assert made.widest["vec"] == 4


def test_the_grid_is_as_much_smaller_and_the_sizes_are_multiples() -> None:
    text = drafted(f"{GUARDED} if (i < n) y[i] = x[i];").space_yaml
    assert 'grid: ["ceil_div(n, block_size * vec * items)"]' in text
    assert '  - "n % vec == 0"' in text
    assert "default: {block_size: 256, min_blocks: 0, vec: 1, streaming: 0, items: 1}  #" in text


def test_the_width_follows_from_the_smallest_element() -> None:
    made = drafted(f"{GUARDED} if (i < n) y[i] = x[i];", "float* y, const __half* x, int n")
    assert "  vec: [1, 2, 4, 8]" in made.space_yaml


def test_a_kernel_that_has_its_width_gets_no_other() -> None:
    body = f"{GUARDED} if (i < n / 4) ((float4*)y)[i] = reinterpret_cast<const float4*>(x)[i];"
    assert drafted(body).parameters == ("block_size", "min_blocks")


def test_what_an_assignment_names_and_reads_is_loaded() -> None:
    template = drafted(f"{GUARDED} if (i < n) y[i] = y[i] * 2 + x[i];").template
    assert "y_i = Vector<float, @{ vec }@>::load(&y[i_first]);" in template


def test_an_index_that_the_body_names_is_written_out_before_it() -> None:
    template = drafted(f"{ROWS} {{ const int i = blockIdx.x * n + c; y[i] = x[i]; }}").template
    assert "::load(&x[blockIdx.x * n + c_first]);" in template
    assert "y_c.store(&y[blockIdx.x * n + c_first]);" in template
