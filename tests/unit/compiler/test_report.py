from tuner.compiler import log as report
from tuner.model.trial import Resources

LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z3fooILi8EEvPf' for 'sm_90a'
ptxas info    : Function properties for _Z3fooILi8EEvPf
ptxas         .     40 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 14 registers, used 2 barriers, 40 bytes cumulative stack size, 32 bytes smem
ptxas info    : Compile time = 24.439 ms
ptxas info    : Compiling entry function 'bar' for 'sm_90a'
ptxas info    : Function properties for bar
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, 380 bytes cmem[0]
"""


def test_reads_every_kernels_resources():
    assert report.resources(LOG) == {
        "_Z3fooILi8EEvPf": Resources(
            registers=14,
            spill_store_bytes=12,
            spill_load_bytes=16,
            static_shared_bytes=32,
            stack_bytes=40,
            barriers=2,
        ),
        "bar": Resources(registers=8),
    }


def test_spills_of_a_called_function_count_for_the_kernels():
    called = """\
ptxas info    : Function properties for _Z4helpf
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
"""

    found = report.resources(LOG + called)

    assert found["bar"].spills
    assert found["_Z3fooILi8EEvPf"].spill_store_bytes == 16


def test_keeps_errors_and_drops_the_rest():
    log = """\
"kernel.cu": creating precompiled header file "/somewhere/kernel_0.pch"
kernel.cu(1): warning #177-D: variable "i" was declared but never referenced
  int i = 3;
      ^

Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"

kernel.cu(5): error: identifier "q" is undefined
  q[0] = 1;
  ^

1 error detected in the compilation of "kernel.cu".
"""
    expected = 'kernel.cu(5): error: identifier "q" is undefined\n  q[0] = 1;\n  ^'

    assert report.errors(log) == [expected]


def test_keeps_errors_of_the_assembler_and_of_options():
    log = """\
ptxas info    : 0 bytes gmem
ptxas error   : Entry function 'k' uses too much shared data (0x1c000 bytes, 0xc000 max)
ptxas info    : Compile time = 1 ms
"""

    assert report.errors(log) == [log.splitlines()[1]]
    assert report.errors("nvrtc: error: unrecognized option -O9 found\n") == [
        "nvrtc: error: unrecognized option -O9 found"
    ]


def test_shortens_only_what_is_long():
    assert report.shortened("short") == "short"
    assert len(report.shortened("x" * 1_000_000)) < 25_000
