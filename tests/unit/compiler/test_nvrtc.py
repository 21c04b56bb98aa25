import shutil

import pytest

from tuner.compiler.nvrtc import Nvrtc, headers_identity, include_dirs

OPTIONS = ["--gpu-architecture=sm_90a", "--ptxas-options=-v", "--std=c++17"]


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def nvrtc(cache_dir, tmp_path, monkeypatch):
    monkeypatch.setattr("tuner.compiler.nvrtc.FREE_BYTES", 0)  # a full disk is no failure here
    return Nvrtc(cache_dir, tmp_path)


def source(size, before="", after=""):
    return f"""\
{before}
#include <cuda_fp16.h>
{after}
constexpr int size = {size};
extern "C" __global__ void copy(__half* to) {{ to[0] = to[size] * to[1]; }}
"""


def compiled(nvrtc, text, *options, state=""):
    unit = nvrtc.compile(text, ["copy"], [*OPTIONS, *options], state)
    assert unit.payload, unit.header["log"]
    return unit


def test_sources_that_begin_alike_share_a_precompiled_header_that_changes_nothing(nvrtc, tmp_path):
    plain = compiled(nvrtc, source(1))
    making = compiled(nvrtc, source(2))
    using = compiled(nvrtc, source(1))

    assert "precompiled" not in plain.header["log"]
    assert "creating precompiled" in making.header["log"]
    assert "using precompiled" in using.header["log"]
    assert using.payload == plain.payload


@pytest.mark.parametrize("varying", ["option", "before", "after", "state"])
def test_nothing_is_precompiled_where_it_could_not_be_used_again(nvrtc, tmp_path, varying):
    for number in range(4):
        define = f"#define NUMBER {number}"
        text = source(1, **({varying: define} if varying in ("before", "after") else {}))
        options = [f"-DNUMBER={number}"] if varying == "option" else []
        unit = compiled(nvrtc, text, *options, state=str(number) if varying == "state" else "")
        assert "precompiled" not in unit.header["log"]

    assert list(tmp_path.rglob("*.pch")) == []


def test_keeps_the_precompiled_headers_of_the_last_few_beginnings(nvrtc, tmp_path):
    for number in range(6):
        for _ in range(2):
            compiled(nvrtc, source(1, before=f"#define NUMBER {number}"))

    assert len(list(tmp_path.rglob("*.pch"))) == 4


def test_headers_that_were_cleaned_away_are_extracted_again(nvrtc, cache_dir):
    [headers] = cache_dir.glob("headers-*")
    shutil.rmtree(headers)

    assert compiled(nvrtc, source(1))
    assert headers.is_dir()


@pytest.fixture
def toolkit(tmp_path, monkeypatch):
    def toolkit(version):
        include = tmp_path / str(version) / "include"
        (include / "cccl").mkdir(parents=True)
        (include / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {version}\n")
        return include

    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return toolkit


def test_an_nvrtc_without_headers_takes_those_of_its_own_version(toolkit, monkeypatch, tmp_path):
    near, own = toolkit(13090), toolkit(13010)
    monkeypatch.setenv("CUDA_HOME", str(own.parent))
    monkeypatch.setenv("CUDA_PATH", str(near.parent))

    folders = include_dirs((13, 1), tmp_path)

    assert folders == [own, own / "cccl"]
    assert str(own) in headers_identity(folders)


def test_finds_a_toolkit_by_its_nvcc(toolkit, monkeypatch, tmp_path):
    include = toolkit(12090)
    nvcc = include.parent / "bin/nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\n")
    nvcc.chmod(0o755)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(nvcc.parent))

    assert include_dirs((12, 9), tmp_path)[0] == include
    assert headers_identity([]) == "no headers"


STANDARD_INTEGERS = """\
#include <{first}>
#include <{second}>
template <typename A, typename B> constexpr bool same = false;
template <typename A> constexpr bool same<A, A> = true;
static_assert(same<int64_t, long> && same<std::uint64_t, unsigned long>);
extern "C" __global__ void copy(int64_t* to) {{ to[0] = to[1]; }}
"""


@pytest.mark.parametrize(
    "header", ["cuda/std/type_traits", "cuda_pipeline.h", "cooperative_groups.h", "cuda/barrier"]
)
def test_integers_of_64_bits_are_those_of_nvcc_whichever_header_declares_them(nvrtc, header):
    for first, second in (("cstdint", header), (header, "cstdint")):
        compiled(nvrtc, STANDARD_INTEGERS.format(first=first, second=second))


def test_cccl_calls_the_same_type_int64_t(nvrtc):
    text = STANDARD_INTEGERS.replace("std::uint64_t", "cuda::std::uint64_t")

    compiled(nvrtc, text.format(first="cuda/std/cstdint", second="cstdint"))


def test_another_header_of_ours_makes_another_compiler_for_the_cache(cache_dir, tmp_path):
    one, other = Nvrtc(cache_dir, tmp_path), Nvrtc(cache_dir, tmp_path)
    other._headers["stdint.h"] += "#define NEW 1\n"

    assert one.identity == Nvrtc(cache_dir, tmp_path).identity
    assert one.identity != other.identity
