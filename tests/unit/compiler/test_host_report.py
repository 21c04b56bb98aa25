"""Reports of g++'s sanitizers, as they wrote them, in one line."""

from __future__ import annotations

import pytest

from tuner.compiler.host import sanitizer_finding

HEAP = """
=================================================================
==13194==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x602000000020 at pc 0x5651
WRITE of size 4 at 0x602000000020 thread T0
    #0 0x7f26dce30000 in __interceptor_memset ../../../src/libsanitizer/asan/asan_interceptors.cc:9
    #1 0x5651368ed1c3 in run(float*, int) /tmp/folder/kernel.cu:2
    #2 0x5651368ed203 in main /tmp/folder/kernel.cu:3

0x602000000020 is located 0 bytes to the right of 16-byte region [0x602000000010,0x602000000020)
"""
STACK = """
==13276==ERROR: AddressSanitizer: stack-buffer-overflow on address 0x7ffffd08e200 at pc 0x55d9
READ of size 16 at 0x7ffffd08e200 thread T0
    #0 0x55d927ab91c3 in run(float*, int) kernel.cu:12:5

Address 0x7ffffd08e200 is located in stack of thread T0 at offset 48 in frame
"""
SIGNAL = """AddressSanitizer:DEADLYSIGNAL
==13310==ERROR: AddressSanitizer: SEGV on unknown address 0x000000000008 (pc 0x55fd9ab791bc T0)
==13310==Hint: address points to the zero page.
    #0 0x55fd9ab791bc in run(float*, int) /tmp/folder/part.cuh:7
"""
UNDEFINED = (
    "kernel.cu:3:50: runtime error: signed integer overflow: 2147483647 + 1 cannot be represented "
    "in type 'int'\n"
)


@pytest.mark.parametrize(
    ("report", "finding"),
    [
        (
            HEAP,
            "kernel.cu(2): heap-buffer-overflow, write of 4 bytes, "
            "0 bytes to the right of 16-byte region",
        ),
        (STACK, "kernel.cu(12): stack-buffer-overflow, read of 16 bytes"),
        (SIGNAL, "part.cuh(7): SEGV on unknown address 0x000000000008"),
        (
            UNDEFINED,
            "kernel.cu(3): signed integer overflow: 2147483647 + 1 cannot be represented "
            "in type 'int'",
        ),
        (UNDEFINED + HEAP, sanitizer_finding(UNDEFINED)),
        ("Segmentation fault\n", ""),
        ("", ""),
    ],
)
def test_a_report_becomes_its_line_and_what_was_done(report: str, finding: str) -> None:
    assert sanitizer_finding(report) == finding
