import pytest

from tuner.compiler import headers


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

    folders = headers.include_dirs((13, 1), tmp_path)

    assert folders == [own, own / "cccl"]
    assert str(own) in headers.identity(folders)


def test_finds_a_toolkit_by_its_nvcc(toolkit, monkeypatch, tmp_path):
    include = toolkit(12090)
    nvcc = include.parent / "bin/nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\n")
    nvcc.chmod(0o755)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(nvcc.parent))

    assert headers.include_dirs((12, 9), tmp_path)[0] == include


def test_says_so_where_there_are_none():
    assert headers.identity([]) == "no headers"
