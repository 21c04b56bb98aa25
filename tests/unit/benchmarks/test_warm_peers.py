"""What is called before peers are timed: each on each workload, and what cannot be is told."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest
import warm_peers

WORKLOAD = "M=1,N=576,K=7168"


class Torch(ModuleType):
    """As much of PyTorch as tells what was made."""

    float8_e4m3fn, bfloat16, float32, uint32, int32 = "e4m3", "bf16", "f32", "u32", "i32"

    def zeros(self, shape: tuple[int, ...], dtype: str, device: str) -> tuple[str, np.ndarray]:
        assert device == "cuda"
        return dtype, np.zeros(shape, np.uint8)


def test_a_peer_gets_the_arrays_that_it_is_timed_with() -> None:
    spec = warm_peers.load_definition(warm_peers.ROOT / "search_spaces/sglang/gemm_fp8.yaml")
    choice = {"SCALES": "block"}
    workload = warm_peers.workload_from_text(spec.spec, WORKLOAD)
    made = warm_peers.arrays(Torch("torch"), spec.chosen(choice).spec, workload, choice)
    shapes = {name: (dtype, array.shape) for name, (dtype, array) in made.items()}
    assert shapes["x"] == ("e4m3", (1, 7168))
    assert shapes["x_scale"] == ("f32", (56, 4))
    assert shapes["w_scale"] == ("f32", (5, 56))
    assert shapes["out"] == ("bf16", (1, 576))


def test_every_peer_is_called_on_every_workload_and_a_failure_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["warm_peers.py", "gemm_fp8", "--peer", "sgl-aot", "--peer", "pytorch"]
    words += ["--workload", WORKLOAD, "--workload", "M=4,N=576,K=7168", "--processes", "1"]
    monkeypatch.setattr(sys, "argv", words)
    # In processes of their own, which then have nothing of this module to import.
    monkeypatch.setattr(warm_peers, "warm", "ImportError: no torch".format)
    warm_peers.main()
    assert capsys.readouterr().out.splitlines() == [
        "sgl-aot M=1,N=576,K=7168: ImportError: no torch",
        "sgl-aot M=4,N=576,K=7168: ImportError: no torch",
        "pytorch M=1,N=576,K=7168: ImportError: no torch",
        "pytorch M=4,N=576,K=7168: ImportError: no torch",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gemm_fp8", "--peer", "deepgemm"], "has no peer named 'deepgemm'"),
        (["gemm_fp8", "--operator", "SCALES=row"], "SCALES cannot be 'row'"),
        (["gemm_fp9"], "gemm_fp9.yaml"),
    ],
)
def test_what_there_is_not_is_one_error(
    words: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["warm_peers.py", *words])
    with pytest.raises(SystemExit) as ended:
        warm_peers.main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
