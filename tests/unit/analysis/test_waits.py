"""What machine code does before its wait, found along every way to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tuner.analysis.sass import disassemble, read
from tuner.analysis.waits import BeforeWait, before_wait, unread_because
from tuner.compiler.base import CompileRequest
from tuner.compiler.pool import NvrtcPool

KERNEL = """
extern "C" __global__ void scale(float* __restrict__ out, const float* __restrict__ in, int count,
                                 int rounds) {{
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  {before}
  asm volatile("griddepcontrol.wait;" ::: "memory");
  {after}
  for (int k = 0; k < rounds; ++k) if (i + k < count) out[i + k] = 2.0f * in[i + k];
}}
"""
LAUNDER = 'asm volatile("" : "+l"(in)::"memory"); __builtin_assume(__isGlobal(in));'
WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
Find = Callable[..., BeforeWait]


@pytest.fixture
def find(compiler: NvrtcPool) -> Find:
    def find(before: str = "", after: str = LAUNDER, source: str = KERNEL) -> BeforeWait:
        text = source.format(before=before, after=after)
        result = compiler.submit(CompileRequest(text, ("scale",), "sm_90a")).result(60)
        assert result.ok, result.error
        found = before_wait(read(disassemble(result.cubin)), "scale")
        assert found is not None
        return found

    return find


def families(found: BeforeWait) -> set[str]:
    return {one.family for one in found.accesses}


def test_a_kernel_that_waits_first_is_right(find: Find) -> None:
    found = find()
    assert found == BeforeWait((), (), False)
    assert found.problem == ""


def test_a_load_hoisted_above_the_wait_is_named(find: Find) -> None:
    found = find("const float first = in[i];", f"{LAUNDER} out[i] = first;")
    assert families(found) == {"LDG"}
    assert "touches global memory before griddepcontrol.wait: LDG" in found.problem
    assert "launder_after_wait" in found.problem


def test_reads_may_be_of_constants_and_writes_may_not(find: Find) -> None:
    found = find("const float first = in[i];", f"{LAUNDER} out[i] = first;")
    assert found.problem_beside_constants == ""
    found = find("out[i] = in[i];")
    assert "touches global memory before griddepcontrol.wait: STG" in found.problem_beside_constants
    assert "LDG" not in found.problem_beside_constants


def test_prefetches_and_shared_memory_may_come_before(find: Find) -> None:
    before = """
      __shared__ float room[256];
      room[threadIdx.x] = i;
      __syncthreads();
      asm volatile("prefetch.global.L2 [%0];" ::"l"(in + i));"""
    after = f"{LAUNDER} if (room[threadIdx.x ^ 1] < 0.0f) out[0] = 1.0f;"
    assert find(before, after) == BeforeWait((), (), False)


@pytest.mark.parametrize(
    ("before", "named"),
    [
        ("out[i] = 0.0f;", {"STG"}),
        ("atomicAdd(out + i, 1.0f);", {"RED", "REDG"}),
        ("if (rounds > 7) out[i] = 0.0f;", {"STG"}),
        ("for (int k = 0; k < rounds; ++k) out[k * count] = 0.0f;", {"STG"}),
    ],
)
def test_stores_before_the_wait_are_found(find: Find, before: str, named: set[str]) -> None:
    found = families(find(before))
    assert found
    assert found <= named


def test_a_wait_on_one_of_two_ways_is_none(find: Find) -> None:
    """Though it stands before the loads in the order of the addresses."""
    source = KERNEL.replace(
        WAIT, f"if (count > 100) {{{{ {WAIT} }}}} else {{{{ __syncthreads(); }}}}"
    )
    assert source != KERNEL
    assert "LDG" in families(find(source=source))
    both = KERNEL.replace(
        WAIT, f"if (count > 100) {{{{ {WAIT} }}}} else {{{{ {WAIT} __syncthreads(); }}}}"
    )
    assert find(source=both).problem == ""


def test_a_loop_that_waits_at_its_end_touches_memory_before(find: Find) -> None:
    source = """
extern "C" __global__ void scale(float* out, const float* in, int count, int rounds) {{
  {before}{after}
#pragma unroll 1
  for (int k = 0; k < rounds; ++k) {{
    out[k] = in[k + count];
    asm volatile("griddepcontrol.wait;" ::: "memory");
  }}
}}
"""
    assert families(find(after="", source=source)) == {"LDG", "STG"}


def test_a_trigger_is_told(find: Find) -> None:
    trigger = 'asm volatile("griddepcontrol.launch_dependents;" ::: "memory");'
    assert find(trigger).triggers
    assert find(after=f"{LAUNDER} {trigger}").triggers


def test_what_a_function_does_that_is_called_counts(find: Find) -> None:
    source = "__device__ __noinline__ void put(float* out, int i) {{ out[i] = i; }}\n" + KERNEL
    assert families(find("put(out, i);", source=source)) & {"ST", "STG"}
    assert find(after=f"{LAUNDER} put(out, i);", source=source).problem == ""


def test_without_machine_code_nothing_is_read() -> None:
    assert unread_because(b"").startswith("not read")
    assert before_wait(read(""), "scale") is None


def test_without_the_disassembler_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.analysis.waits.find_nvdisasm", lambda: None)
    assert "nvdisasm was not found" in unread_because(b"\x7fELF")
