"""Kernels compiled for the CPU, each launched in a process of its own."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from host_programs import cubins

from tests.support.host_launch import Launched, launch
from tuner.extensions.cpu.child import LaunchEnd
from tuner.extensions.cpu.compiler import preload
from tuner.model.errors import DeviceError

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

DATA = Path(__file__).parent / "data"
INTS = ("c_int", 64)
ORDERS = (0, 1, 7, 123456789)


Compilers = Callable[..., bytes]


@pytest.fixture(scope="module")
def compilers() -> Iterator[Compilers]:
    with cubins() as compile_kernels:
        yield compile_kernels


def kernel(body: str) -> str:
    return f'#include <cuda_fp8.h>\nextern "C" __global__ void run(int* y) {{\n{body}\n}}\n'


def ran(
    compilers: Compilers, body: str, *sanitizers: str, buffer: tuple[str, int] = INTS, **more: Any
) -> Launched:
    library = compilers(kernel(body), sanitizers=sanitizers)
    return launch(library, buffer, environment=preload(sanitizers), **more)


class TestOrder:
    def test_each_order_runs_every_block_and_thread_once(self, compilers: Compilers) -> None:
        body = "atomicAdd(y + blockIdx.x, (int)threadIdx.x);"
        library = compilers(kernel(body))
        for order in ORDERS:
            end = launch(library, INTS, grid=(64, 1, 1), block=(100, 1, 1), order=order)
            assert end.buffers[0] == [4950 + i for i in range(64)]

    def test_ascending_descending_and_seeded(self, compilers: Compilers) -> None:
        body = "__shared__ int n; if (threadIdx.x < 64) y[threadIdx.x] = atomicAdd(y + 64, 1);"
        library = compilers(kernel(body))
        taken = [
            launch(library, ("c_int", 65), block=(64, 1, 1), order=order).buffers[0][:64]
            for order in (0, 1, 7, 7, 8)
        ]
        assert taken[0] == [64 + i for i in range(64)]
        assert taken[1] == taken[0][::-1]
        assert taken[2] == taken[3] != taken[4]
        assert sorted(taken[2]) == taken[0]

    def test_warps_take_turns_in_another_order_after_every_barrier(
        self, compilers: Compilers
    ) -> None:
        body = """for (int k = 0; k < 16; ++k) {
          __syncthreads();
          if (threadIdx.x % 32 == 0) y[4 * k + atomicAdd(y + 64, 1) % 4] = threadIdx.x / 32;
        }"""
        library = compilers(kernel(body))
        buffer = launch(library, ("c_int", 65), block=(128, 1, 1), order=99).buffers[0]
        rounds = {tuple(buffer[4 * k : 4 * k + 4]) for k in range(16)}
        assert len(rounds) > 4
        assert all(sorted(one) == [0, 1, 2, 3] for one in rounds)


class TestBarriers:
    @pytest.mark.parametrize(
        "body",
        [
            "if (threadIdx.x < 8) return;\n__syncthreads(); y[threadIdx.x] = -1;",
            "if (threadIdx.x >= 8) { __syncthreads(); y[threadIdx.x] = -1; }",
            "if (threadIdx.x < 8) return;\nif (__syncthreads_and(1)) y[threadIdx.x] = -1;",
            "if (threadIdx.x >= 8 && __shfl_xor_sync(~0xffu, 1, 1)) y[threadIdx.x] = -1;",
        ],
    )
    def test_threads_that_have_ended_are_not_waited_for(
        self, compilers: Compilers, body: str
    ) -> None:
        end = ran(compilers, body)
        assert (end.code, end.message) == (LaunchEnd.DONE, "")
        assert end.buffers[0][:32] == [*range(8), *[-1] * 24]


class TestSharedMemory:
    def test_every_block_finds_all_of_it_spoiled(self, compilers: Compilers) -> None:
        library = compilers((DATA / "shared.cu").read_text("utf-8"))
        shown = [
            launch(library, INTS, grid=(3, 1, 1), order=order, times=2).buffers[0][:3]
            for order in ORDERS
        ]
        assert shown[0] == [-1] * 3
        assert all(len(set(one)) == 1 for one in shown)
        assert len({one[0] for one in shown}) == len(ORDERS)

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ("__shared__ int s[32];\ns[threadIdx.x + 1] = 1;", "past the 128 bytes of its shared"),
            ("__shared__ int s[32];\ns[(int)threadIdx.x - 1] = 1;", "before the 128 bytes of its"),
            ("extern __shared__ int s[];\ns[threadIdx.x + 1] = 1;", "past the 128 bytes of its d"),
        ],
    )
    def test_a_write_beyond_a_variable_is_an_error(
        self, compilers: Compilers, body: str, message: str
    ) -> None:
        end = ran(compilers, body, shared_bytes=128)
        assert end.code == LaunchEnd.STUCK
        assert f"block (0,0,0) wrote {message}" in end.message

    def test_more_than_a_gpu_has_is_refused(self, compilers: Compilers) -> None:
        static = "__shared__ char s[{}]; s[threadIdx.x] = 1; y[0] = s[y[1]];"
        end = ran(compilers, static.format(48 * 1024 + 4))
        assert end.code == LaunchEnd.REFUSED
        assert "declares 49156 bytes of static shared memory: at most 49152" in end.message
        outside = "__shared__ char s[50000];\n" + kernel("s[threadIdx.x] = 1; y[0] = s[y[1]];")
        assert launch(compilers(outside), INTS).code == LaunchEnd.REFUSED
        end = ran(compilers, static.format(48 * 1024), shared_bytes=180 * 1024)
        assert end.code == LaunchEnd.REFUSED
        assert "at most 232448 are possible" in end.message
        assert (
            ran(compilers, static.format(48 * 1024), shared_bytes=100 * 1024).code == LaunchEnd.DONE
        )


BEYOND = [
    ("y[threadIdx.x + 40] = 1;", r"write of 4 bytes .* 256 bytes from the start of parameter 1"),
    ("y[0] = y[-1 - (int)threadIdx.x];", "read of 4 bytes .* before the first buffer"),
    ("atomicAdd(y + 64, 1);", "256 bytes from the start of parameter 1, beyond its end"),
    ("__stcs(y + 64, 1);", "write of 4 bytes .* beyond its end"),
    ("__shared__ int s[32]; __syncthreads(); s[threadIdx.x + 1] = 1;",
     r"0 bytes after the 128 bytes of the shared variable `s`, by thread \(31,0,0\)"),
    ("extern __shared__ int s[]; __syncwarp(); s[threadIdx.x + 1] = 1;",
     "0 bytes after the 128 bytes of dynamic shared memory"),
    ("int a[4] = {y[1]}; __syncthreads(); y[0] = a[threadIdx.x];", "stack-buffer-overflow"),
    ("y[1ll << 44] = 1;", "SEGV on unknown address"),
]  # fmt: skip


def has_address_sanitizer() -> bool:
    try:
        return bool(preload(("address",)))
    except DeviceError:
        return False


needs_asan = pytest.mark.skipif(not has_address_sanitizer(), reason="needs libasan")


@needs_asan
class TestAddressSanitizer:
    @pytest.mark.parametrize(("body", "message"), BEYOND)
    def test_an_access_beyond_its_memory_names_the_line(
        self, compilers: Compilers, body: str, message: str
    ) -> None:
        end = ran(compilers, f"\n{body}\n", "address", shared_bytes=128)
        assert end.code == LaunchEnd.SANITIZER
        assert end.message.startswith("kernel.cu(4): ")
        assert re.search(message, end.message), end.message

    def test_a_report_that_outlasts_the_launch_is_waited_for(self, compilers: Compilers) -> None:
        library = compilers(kernel("\ny[threadIdx.x + 40] = 1;\n"), sanitizers=("address",))
        # Reports take 0.2 s and more. The best of five: a busy machine may not even start in time.
        codes = {
            launch(library, INTS, timeout_s=0.05, environment=preload(("address",))).code
            for _ in range(5)
        }
        assert LaunchEnd.SANITIZER in codes

    def test_a_correct_kernel_with_all_kinds_of_switches_is_quiet(
        self, compilers: Compilers
    ) -> None:
        body = """
          __shared__ float z[33];
          int local[8];
          for (int k = 0; k < 8; ++k) local[k] = k;
          if (threadIdx.x > 40) return;
          for (int k = 0; k < 5; ++k) {
            __syncthreads();
            z[threadIdx.x % 33] = local[(threadIdx.x + k) % 8];
            local[k] += __shfl_xor_sync(__activemask(), local[k], 1);
          }
          y[threadIdx.x] = local[threadIdx.x % 8];"""
        for order in (0, 7):
            end = ran(
                compilers, body, "address", "undefined", order=order, block=(64, 1, 1), times=2
            )
            assert (end.code, end.message) == (LaunchEnd.DONE, "")

    def test_a_launch_after_one_that_was_given_up_is_judged_afresh(
        self, compilers: Compilers
    ) -> None:
        body = """
          int a[16];
          for (int i = 0; i < 16; ++i) a[i] = y[i];
          __syncthreads();
          if (atomicAdd(y + 63, 1) == 63 + 5) __trap();
          y[threadIdx.x] = a[threadIdx.x % 16];"""
        end = ran(compilers, body, "address", times=2)
        assert end.code == LaunchEnd.STUCK
        assert "trapped" in end.message


class TestUndefinedBehaviourSanitizer:
    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ("y[0] = 2147483647 + (int)threadIdx.x;", "overflow: "),
            ("y[0] = -(y[0] - 2147483647 - 1);", "overflow: -(-2147483648) does not fit 'int'"),
            ("y[0] = 7 / (int)threadIdx.x;", "division of 7 by 0"),
            ("y[0] = 1 << (32 + threadIdx.x);", "by 32"),
            ("int a[4] = {}; y[0] = a[threadIdx.x];", "index 4 is outside 'int [4]'"),
            ("*(int4*)(y + 1) = int4{};", "misaligned write of 'struct int4'"),
            ("__stcs((int4*)(y + 1), int4{});", "misaligned access"),
            ("y[0] = __ldg((const int2*)(y + 1)).x;", "misaligned access"),
            ("y[0] = (int)(1e20f * y[3]);", "conversion of 3e+20 to 'int'"),
            ("int* none = y[0] ? y : nullptr; *none = 1;", "through a null pointer"),
        ],
    )
    def test_undefined_behaviour_names_the_line(
        self, compilers: Compilers, body: str, message: str
    ) -> None:
        end = ran(compilers, f"\n{body}\n", "undefined")
        assert end.code == LaunchEnd.SANITIZER
        assert end.message.startswith("kernel.cu(4): ")
        assert message in end.message
        assert "by thread (" in end.message

    def test_what_a_gpu_defines_is_quiet(self, compilers: Compilers) -> None:
        body = """
          y[0] = (1 << 31) ^ (-1 << 3);
          y[1] = __float2int_rn(1e20f);
          y[2] = 1.0f / (float)(threadIdx.x - threadIdx.x) > 1;
          y[3] = atomicAdd(y + 4, 2147483647) + __dp4a(0x7f7f7f7f, 0x7f7f7f7f, 2147483647) % 2;
          atomicAdd(y + 4, 2147483647);
          y[5] = __reduce_add_sync(~0u, 2147483647);
          float3 f = __ldg((const float3*)(y + 7));
          y[6] = f.x > 0;"""
        end = ran(compilers, body, "undefined")
        assert (end.code, end.message) == (LaunchEnd.DONE, "")


# Each is a condition that a GPU makes true.
TRUTHS = (DATA / "truths.txt").read_text(encoding="utf-8").splitlines()


class TestIntrinsics:
    def test_each_computes_what_cuda_documents(self, compilers: Compilers) -> None:
        lines = "\n".join(f"y[{i}] = ({one});" for i, one in enumerate(TRUTHS))
        body = "int all = 0;\n__builtin_assume(all == 0);\nfloat4 ones = {1, 1, 1, 1};\n" + lines
        headers = "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n"
        library = compilers(headers + kernel(body))
        found = launch(library, INTS).buffers[0][: len(TRUTHS)]
        assert [one for one, held in zip(TRUTHS, found, strict=True) if held != 1] == []

    def test_dynamic_shared_memory_is_an_array_that_may_be_read_as_another_type(
        self, compilers: Compilers
    ) -> None:
        body = """extern __shared__ char bytes[];
        struct Pair { int first, second; };
        auto& pairs = reinterpret_cast<Pair(&)[16]>(bytes);
        if (threadIdx.x < 16) pairs[threadIdx.x] = {(int)threadIdx.x, 7};
        __syncthreads();
        auto last = [=] { return reinterpret_cast<int*>(bytes)[31 - threadIdx.x]; };
        y[threadIdx.x] = last();"""
        end = ran(compilers, body, shared_bytes=128)
        assert (end.code, end.message) == (LaunchEnd.DONE, "")
        assert end.buffers[0][:4] == [7, 15, 7, 14]

    def test_cooperative_groups_do_as_on_a_gpu(self, compilers: Compilers) -> None:
        library = compilers((DATA / "groups.cu").read_text("utf-8"))
        for order in ORDERS:
            end = launch(library, ("c_int", 65), block=(64, 1, 1), order=order)
            assert (end.code, end.message) == (LaunchEnd.DONE, "")
            sums = [64 * (i // 8) + 28 + 1000 * (31 + i // 32 * 32) for i in range(64)]
            assert end.buffers[0] == [*sums, 64]

    def test_cub_reduces_scans_sorts_and_loads_as_on_a_gpu(self, compilers: Compilers) -> None:
        library = compilers((DATA / "cub.cu").read_text("utf-8"))
        for order in ORDERS:
            end = launch(library, ("c_int", 256), block=(96, 1, 1), order=order)
            assert (end.code, end.message) == (LaunchEnd.DONE, "")
            found = end.buffers[0]
            assert found[:5] == [4560, 780, 4656, 49, 49]
            assert found[5:8] == [55, 45, 4560]
            assert found[8:18] == [64 * group + 28 for group in range(10)]
            assert found[18:28] == [55, 65, 213, 212, 211, 210, 149, 148, 147, 146]

    def test_headers_of_the_standard_library_can_be_included(self, compilers: Compilers) -> None:
        headers = "#include <algorithm>\n#include <array>\n#include <cassert>\n#include <limits>\n"
        body = "assert(y[1] == 1);\ny[0] = std::max(3, y[2]);\nassert(y[0] == 2);"
        end = launch(compilers(headers + kernel(body)), INTS)
        assert (end.code, end.buffers[0][0]) == (LaunchEnd.STUCK, 3)
        assert "thread (0,0,0) of block (0,0,0) fails an assertion (line 9)" in end.message

    def test_atomics_of_vectors_and_narrow_floats(self, compilers: Compilers) -> None:
        body = (DATA / "atomics.txt").read_text("utf-8")
        assert ran(compilers, body).buffers[0][:5] == [64, 128, 64, 64, 96]


def test_floats_of_8_and_16_bits_have_limits(compilers: Compilers) -> None:
    asked = "static_assert(__builtin_bit_cast(unsigned {}, std::numeric_limits<{}>::{}()) == {});"
    told = [
        asked.format(*one)
        for one in (
            ("short", "__half", "max", "0x7BFF"),
            ("short", "__nv_bfloat16", "lowest", "0xFF7F"),
            ("char", "__nv_fp8_e4m3", "max", "0x7E"),
            ("char", "__nv_fp8_e5m2", "infinity", "0x7C"),
        )
    ]
    headers = (
        "#include <limits>\n#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <cuda_fp8.h>\n"
    )
    compilers(headers + "\n".join(told) + "\n__global__ void run(int* y) { y[0] = 1; }\n")
