"""A source in its namespace: includes outside, no C linkage, no host part."""

from __future__ import annotations

from tuner.extensions.export.cpp import in_namespace


def test_what_stands_before_the_first_code_stays_outside():
    source = "// about\n#include <a.h>\n#ifndef X\n#define X 1\n#endif\n\nint f();\n"
    made = in_namespace(source, "n")
    head, opened, body = made.partition("namespace n {\n")
    assert head.endswith("#endif\n\n")
    assert opened
    assert body == "int f();\n\n}  // namespace n"


def test_a_later_include_is_outside_too():
    made = in_namespace("int f();\n#include <b.h>\nint g();", "n").splitlines()
    assert made == [
        *("namespace n {", "int f();", "}  // namespace n", "#include <b.h>", "namespace n {"),
        *("int g();", "}  // namespace n"),
    ]


def test_an_include_inside_of_a_function_stays_where_it_is():
    made = in_namespace('void f() {\n#include "table.inc"\n}', "n")
    assert 'void f() {\n#include "table.inc"\n}' in made


def test_a_namespace_never_opens_inside_of_a_condition():
    made = in_namespace("#include <a.h>\n#if X\nint f();\n#endif\n", "n")
    assert "#include <a.h>\nnamespace n {\n#if X" in made


def test_c_linkage_goes_and_texts_stay():
    source = (
        'extern "C" __global__ void k() { /* extern "C" */ f("extern \\"C\\" x"); }\n'
        'extern "C" {\nint g();\n}\nextern __shared__ float memory[];'
    )
    made = in_namespace(source, "n")
    assert '\n __global__ void k() { /* extern "C" */' in made
    assert "inline namespace c_linkage {\nint g();\n}" in made
    assert "extern __shared__ float memory[];" in made


def test_what_the_tuner_never_compiled_is_not_compiled_now():
    host = "#ifndef __CUDACC_RTC__\nint main() { k<<<1, 1>>>(); }\n#endif\n"
    assert "#if 0  // #ifndef __CUDACC_RTC__\nint main()" in in_namespace(host, "n")
    either = "#ifndef __CUDACC_RTC__\nint a;\n#else\nint b;\n#endif\n"
    assert "#ifndef __CUDACC_RTC__\nint a;" in in_namespace(either, "n")
