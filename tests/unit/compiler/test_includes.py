import time
from pathlib import Path

import pytest

from tuner.compiler.base import source_key
from tuner.compiler.includes import header_digest, include_digest, refused_include


@pytest.mark.parametrize(
    ("source", "line", "words"),
    [
        ('#include "/etc/passwd"\n', 1, 'absolute path "/etc/passwd"'),
        ("\n#include </etc/passwd>\n", 2, "absolute path"),
        ('int a;\n  #  include "../secret.h"\n', 2, "with `..`"),
        ('#include "a/../../b.h"\n', 1, "with `..`"),
        ('#include "a\\\\..\\\\b.h"\n', 1, "with `..`"),
        ('#include "C:/secret"\n', 1, "absolute path"),
        ('#include " /etc/passwd"\n', 1, "absolute path"),
        ('#define FILE "/etc/passwd"\n#include FILE\n', 2, "of a macro"),
        ('#inc\\\nlude "/etc/passwd"\n', 1, "absolute path"),
        ('int a; // \\\nint b;\n#include "/etc/passwd"\n', 3, "absolute path"),
        ('%:include "/etc/passwd"\n', 1, "absolute path"),
        ('??=include "/etc/passwd"\n', 1, "absolute path"),
        ('// ??/\n#include "/etc/passwd"\n', 2, "absolute path"),
        ('/* a\n*/ #include "/etc/passwd"\n', 2, "absolute path"),
        ('#/* a\n*/include/**/"/etc/passwd"\n', 1, "a comment after #"),
        ('#include/* a\n*/"/etc/passwd"\n', 1, "of a macro"),
        ('#inc\\ \nlude "/etc/passwd"\n', 1, "absolute path"),
        ('#inc\\\t\r\nlude "/etc/passwd"\n', 1, "absolute path"),
        ('#inc\\\rlude "/etc/passwd"\n', 1, "absolute path"),
        ('int a;\r#include "/etc/passwd"\n', 2, "absolute path"),
        ('#in\\u0063lude "/etc/passwd"\n', 1, "an escape"),
        ('\n#line 1 "/etc/passwd"\n', 2, "#line of the absolute path"),
        ('# 1 "/etc/passwd" 2\n', 1, "absolute path"),
        ('#define F "/etc/passwd"\n#line 1 F\n', 2, "#line needs a number"),
        ('\n#if __has_include("/etc/passwd")\n#endif\n', 2, "__has_include of the absolute path"),
        ("#if __has_include(<../a>)\n#endif\n", 1, "with `..`"),
        ("#if __has_include(FILE)\n#endif\n", 1, "of a macro"),
        ("#define HAS __has_include\n", 1, "of a macro"),
        ('#if P(__has_,include)("/etc/passwd")\n', 1, "a text in #if"),
        ('#pragma GCC dependency "/etc/passwd"\n', 1, "`#pragma GCC dependency`"),
        ('_Pragma("GCC dependency \\"/etc/passwd\\"")\n', 1, "`_Pragma` of GCC dependency"),
        ('_Prag\\\nma ( L"include_alias(a, b)")\n', 1, "`_Pragma` of include_alias"),
        ("\n#define P _Pragma\n", 2, "_Pragma of a macro"),
        ('_Pragma(R"(GCC dependency)")\n', 1, "_Pragma of a macro"),
        ("#" + "/**/" * 40 + "x\n", 1, "a comment after #"),
        ('/* // */ #include "/etc/passwd"\n', 1, "absolute path"),
        ('#if 0\n\' /*\n#endif\n#include "/etc/passwd"\n', 4, "absolute path"),
        ('const char* a = R"(\n#include "/etc/passwd"\n)";\n', 2, "absolute path"),
        ('#\rinclude "/etc/passwd"\n', 1, "absolute path"),
        ('\ufeff#include "/etc/passwd"\n', 1, "absolute path"),
        ('#include_next "/etc/passwd"\n', 1, "absolute path"),
        ('#embed "secret"\n', 1, "#embed is not allowed"),
        ('#import "secret"\n', 1, "#import is not allowed"),
        ("int a;\0\n", 1, "NUL"),
    ],
)
def test_refuses_what_may_reach_outside_with_its_line(source, line, words):
    error = refused_include(source)

    assert error is not None
    assert error.startswith(f"kernel.cu({line}): error: ")
    assert words in error
    assert "root:" not in error


@pytest.mark.parametrize(
    "source",
    [
        "#include <cuda_bf16.h>\n#include <cub/block/block_reduce.cuh>\n",
        '#include "local.cuh"\n',
        '#include "sub/local..cuh"\n',
        '// #include "../old.h"\n',
        'int a; // see #include "../old.h"\n',
        'const char* a = "#include <../x.h>";\n',
        "#define include_all(x) #x\n",
        "#ifdef __has_include\n#if __has_include(<cuda_fp8.h>)\n#endif\n#endif\n",
        "#if defined(__has_include) && defined __has_embed\n#endif\n",
        '#line 12 "generated.cu"\n#line 12\n',
        "#if A < 1 && B > 2 // \n#endif\n",
        "#pragma unroll\n",
        '_Pragma("unroll 4") _Pragma(STR(unroll N))\n',
    ],
)
def test_lets_harmless_sources_through(source):
    assert refused_include(source) is None


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.cuh").write_text('#include "deep/b.cuh"\n')
    (tmp_path / "deep/b.cuh").write_text('#define NEXT "c.cuh"\n#include NEXT\n')
    (tmp_path / "deep/c.cuh").write_text("constexpr int size = 1;\n")
    (tmp_path / "unused.cuh").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("source", "edited", "changes"),
    [
        ('#include "a.cuh"\n', "a.cuh", True),
        ('#include "a.cuh"\n', "deep/b.cuh", True),
        ('#include "a.cuh"\n', "deep/c.cuh", True),
        ('#include "a.cuh"\n', "unused.cuh", False),
        ('#include "new.cuh"\n', "new.cuh", True),
    ],
)
def test_the_digest_changes_with_every_header_that_the_source_reaches(
    folder, source, edited, changes
):
    before = include_digest(source, (str(folder),))
    assert include_digest(source, (str(folder),)) == before

    with (folder / edited).open("a") as header:
        header.write("// more\n")

    assert (include_digest(source, (str(folder),)) != before) is changes


@pytest.mark.parametrize(
    "piece", ["#", "# ", "#/*", "*/#", "/*", "#include ", '#include "a ', "\\ ", "\\\n", "include"]
)
def test_a_hostile_source_is_looked_through_in_time_that_grows_with_its_length(piece):
    source = piece * (400_000 // len(piece))
    start = time.perf_counter()

    refused_include(source)

    assert time.perf_counter() - start < 2


@pytest.fixture
def secret(tmp_path, folder):
    # `folder` is `tmp_path` itself, so what must not be read lies in a folder beside it.
    path = tmp_path.parent / f"{tmp_path.name}-outside" / "secret.h"
    path.parent.mkdir()
    path.write_text("int secret;\n")
    return path


def test_a_link_that_leads_out_of_the_include_folders_is_refused(folder, secret):
    (folder / "deep/link.cuh").symlink_to(secret)

    error = refused_include('#include "deep/link.cuh"\n', (str(folder),))

    assert error is not None
    assert f"{secret}, outside the include folders" in error


@pytest.mark.parametrize("form", ['#include "{}"', "#define NEXT <{}>\n#include NEXT"])
def test_a_header_that_includes_what_is_outside_is_refused(folder, secret, form):
    (folder / "deep/b.cuh").write_text(form.format(secret) + "\n")

    assert refused_include('#include "a.cuh"\n', (str(folder),)) is not None
    assert refused_include('#include "unused.cuh"\n', (str(folder),)) is None


def test_a_header_may_step_up_within_the_include_folders(folder):
    (folder / "deep/c.cuh").write_text('#include "../unused.cuh"\n')

    assert refused_include('#include "a.cuh"\n', (str(folder),)) is None


def test_a_link_from_one_include_folder_to_another_is_followed(folder, secret):
    (folder / "link.cuh").symlink_to(secret)
    folders = (str(folder), str(secret.parent))

    assert refused_include('#include "link.cuh"\n', folders) is None


def test_a_header_digest_is_of_what_files_hold_and_are_called(tmp_path: Path) -> None:
    source = '#include "kit/a.h"\n'
    digests = []
    for place, text in (("here", "int a;"), ("there", "int a;"), ("there", "int b;")):
        folder = tmp_path / place
        (folder / "kit").mkdir(parents=True, exist_ok=True)
        (folder / "kit/a.h").write_text(text)
        digests.append(header_digest(source, [folder]))
        assert header_digest(f"//% {source[1:]}", [folder]) == digests[-1]
    assert digests[0] == digests[1] != digests[2]
    assert header_digest("int a;", [tmp_path / "here"]) == ""
    assert header_digest(source, []) == ""


def test_a_source_key_holds_the_headers(tmp_path: Path) -> None:
    source, header = '#include "a.h"\n', tmp_path / "a.h"
    asked = source, (), "sm_90a", (str(tmp_path),)
    plain = source_key(*asked[:3])
    assert source_key(*asked) == plain
    header.write_text("int a;")
    first = source_key(*asked)
    header.write_text("int b; ")
    assert len({plain, first, source_key(*asked)}) == 3
