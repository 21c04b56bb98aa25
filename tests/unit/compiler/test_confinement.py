"""What a stranger's source can make of the compiler's process: one failed compile."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.compiler.base import CompileRequest
from tuner.compiler.pool import NvrtcPool
from tuner.process import confinement

HONEST = "__global__ void honest(float* x) { x[threadIdx.x] = 1.0f; }\n"
BOMBS = {
    "templates without end": "template <int N> struct A { A<N + 1> a; A<N + 2> b; };\nA<0> x;\n",
    "a constant of 64 GB": "struct S { int a[1L << 34]; };\n__device__ S s = {{1}};\n",
    "a macro of 3 ** 30 words": "#define A0 int x;\n"
    + "".join(f"#define A{i} A{i - 1} A{i - 1} A{i - 1}\n" for i in range(1, 31))
    + "A30\n",
}


def request(source: str, *kernels: str, include_dirs: tuple[str, ...] = ()) -> CompileRequest:
    return CompileRequest(source, kernels, "sm_90a", include_dirs=include_dirs)


@pytest.fixture(scope="module")
def pool() -> Iterator[NvrtcPool]:
    compiler = NvrtcPool(workers=1, timeout_s=20)
    yield compiler
    compiler.close()


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_bomb_ends_as_one_failed_compile(pool: NvrtcPool, bomb: str) -> None:
    failed = pool.submit(request(bomb)).result(timeout=100)
    after = pool.submit(request(HONEST, "honest")).result(timeout=100)

    assert not failed.ok
    assert after.ok, after.error


def confined(code: str, *arguments: str) -> str:
    script = (
        f"from tuner.process.confinement import *\nimport os, sys\nfrom pathlib import Path\n{code}"
    )
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr.strip().rpartition("\n")[2]


def test_memory_over_the_bound_is_refused() -> None:
    code = "limit_compiler()\nx = bytearray(MAX_DATA_BYTES + 1)"
    assert "MemoryError" in confined(code)


def test_a_file_over_the_bound_is_refused(tmp_path: Path) -> None:
    code = "limit_compiler()\nopen(sys.argv[1], 'wb').truncate(MAX_FILE_BYTES + 1)"
    assert "File too large" in confined(code, str(tmp_path / "big"))


def test_the_environment_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "1")
    code = "forget_environment(Path('/tmp'))\nimport ctypes\nctypes.CDLL(None).getenv.restype = "
    code += "ctypes.c_char_p\nprint('SECRET_KEY' in os.environ, os.popen('env').read())"
    assert confined(code).startswith("False")
    assert "SECRET" not in confined(code).removeprefix("False")


@pytest.fixture
def landlock() -> None:
    if "True" not in confined("print(confine_compiler([Path('/')], []))"):
        pytest.skip("no Landlock in this kernel")


@pytest.mark.usefixtures("landlock")
def test_only_the_named_folders_can_be_read_or_written(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (tmp_path / "mine/link").symlink_to(tmp_path / "other/file")
    code = """
mine, other = Path(sys.argv[1], "mine"), Path(sys.argv[1], "other")
assert confine_compiler([mine], [])
print((mine / "file").read_text())
for use in (lambda: (other / "file").read_text(), lambda: (mine / "link").read_text(),
            lambda: (mine / "new").write_text(""), lambda: os.listdir(other),
            lambda: os.execv("/bin/true", ["true"])):
    try:
        use()
    except PermissionError:
        print("refused")
"""
    assert confined(code, str(tmp_path)).split() == ["mine", *["refused"] * 5]


@pytest.mark.usefixtures("landlock")
def test_a_macro_in_a_header_cannot_reach_outside(tmp_path: Path, pool: NvrtcPool) -> None:
    (tmp_path / "include").mkdir()
    secret = tmp_path / "secret.h"
    secret.write_text("int SECRET_WORD = ;\n")
    header = f"#define TEXT(x) #x\n#include TEXT({secret})\n"
    (tmp_path / "include/a.h").write_text(header)

    source = '#include "a.h"\n' + HONEST
    folders = (str(tmp_path / "include"),)
    result = pool.submit(request(source, "honest", include_dirs=folders)).result(timeout=100)

    assert not result.ok
    assert "cannot open source file" in result.error
    assert "SECRET_WORD" not in result.error


def test_the_bounds_are_those_of_the_documentation() -> None:
    text = (Path(__file__).parents[3] / "docs/trust.md").read_text(encoding="utf-8")
    assert f"{confinement.MAX_DATA_BYTES >> 30} GiB of memory" in text
    assert f"files of {confinement.MAX_FILE_BYTES >> 30} GiB" in text
