import pytest

from tuner.compiler.includes import IncludeDigest, refused_include


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
        ('#/* a\n*/include/**/"/etc/passwd"\n', 1, "absolute path"),
        ('#include/* a\n*/"/etc/passwd"\n', 1, "absolute path"),
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
        "#pragma unroll\n",
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


@pytest.mark.parametrize("edited", ["a.cuh", "deep/b.cuh", "deep/c.cuh"])
def test_the_digest_changes_with_every_header_that_the_source_reaches(folder, edited):
    digest = IncludeDigest()
    source = '#include "a.cuh"\n'
    before = digest.of(source, (str(folder),))
    assert digest.of(source, (str(folder),)) == before

    (folder / edited).write_text((folder / edited).read_text() + "// more\n")

    assert digest.of(source, (str(folder),)) != before


def test_the_digest_ignores_headers_that_are_out_of_reach(folder):
    digest = IncludeDigest()
    before = digest.of('#include "a.cuh"\n', (str(folder),))

    (folder / "unused.cuh").write_text("int other;\n")

    assert digest.of('#include "a.cuh"\n', (str(folder),)) == before


def test_a_header_that_appears_changes_the_digest(folder):
    digest = IncludeDigest()
    before = digest.of('#include "new.cuh"\n', (str(folder),))

    (folder / "new.cuh").write_text("int other;\n")

    assert digest.of('#include "new.cuh"\n', (str(folder),)) != before
