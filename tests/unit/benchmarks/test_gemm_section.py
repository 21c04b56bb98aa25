"""The page's part on linear layers: fusions stand beside peers that fuse nothing."""

from __future__ import annotations

from typing import Any

import gemm_section
from operators_section import cells
from summarize_session import with_kept


def program(kind: str, name: str, ratio: float) -> dict[str, Any]:
    return {
        "kind": kind,
        "name": name,
        "us": 10.0 * ratio,
        "over_winner": ratio,
        "over_winner_interval": [ratio, ratio],
        "alone_us": None,
    }


def result(kernel: str, *peers: dict[str, float], **more: Any) -> dict[str, Any]:
    workloads = [
        {
            "workload": f"M={2**n},K=8",
            "axes": {"M": 2**n, "K": 8},
            "surroundings": "layer",
            "winner": 1,
            "production": "sgl-jit",
            "dispatch": "ours",
            "peers": {},
            "programs": [
                program("baseline", "baseline", 3.0),
                program("config", "a=1", 1.0),
                *(program("peer", *one) for one in known.items()),
            ],
        }
        for n, known in enumerate(peers)
    ]
    environment = {"commit": "0123456789ab", "device": "NVIDIA H200"}
    known = {"kernel": kernel, "workloads": workloads, "surroundings": {}, "seconds": 60.0}
    known["files"] = dict.fromkeys(("space", "template", "headers"), "")
    checks = {"kinds": {}, "input_kinds": []}
    packages: dict[str, str] = {}
    told = {"environment": environment, "checks": checks, "peer_packages": packages}
    return known | told | more


def test_a_mean_says_over_how_many_of_the_cells_it_is() -> None:
    found = cells([result("gemm_fp8", {"sgl-aot": 2.0}, {"sgl-aot": 0.5}, {})])
    figure = next(gemm_section.fp8_figures(found))
    assert (figure.got, figure.met) == ("1.00x over 2 of 3 cells", False)


def test_what_an_interrupted_session_lacks_is_kept_from_an_earlier_one_and_said_to_be() -> None:
    peers = [{"pytorch": ratio} for ratio in (1.1, 1.2, 1.3)]
    earlier = result("gemm_small_m", *peers[:2]) | {"environment": {"commit": "aaaaaaaaaaaa"}}
    later = result("gemm_small_m", peers[0], undecided=["M=2,K=8", "M=4,K=8"])
    made = with_kept(later, earlier)
    assert [one["workload"] for one in made["workloads"]] == ["M=1,K=8", "M=2,K=8"]
    assert made["undecided"] == ["M=4,K=8"]
    said = "\n".join(gemm_section.section([made], "h200", asked=False))
    assert "not decided: M=4,K=8." in said
    assert (
        "an earlier session, with its templates and its search space, at aaaaaaaaaaaa: M=2," in said
    )
    assert "Measured at 0123456789ab, aaaaaaaaaaaa" in said


def test_what_a_session_of_a_part_was_not_asked_for_is_kept() -> None:
    peers = [{"pytorch": ratio} for ratio in (1.1, 1.2, 1.3)]
    earlier = result("gemm_small_m", *peers) | {"environment": {"commit": "aaaaaaaaaaaa"}}
    made = with_kept(result("gemm_small_m", peers[0], undecided=[]), earlier)
    assert [one.get("commit") for one in made["workloads"]] == [None, *["aaaaaaaaaaaa"] * 2]
    assert not made["undecided"]
