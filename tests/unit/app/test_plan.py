"""What settings make of a plan, and what it refuses before anything is measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tuner.app.plan import new_plan
from tuner.model import settings
from tuner.model.errors import InputError, KernelError

AROUND = """
surroundings:
  layer:
    chain:
      - before: [{function: router}]
"""
NEIGHBOURS = "neighbours = {{{name!r}: lambda tensors, axes: None}}\n"


@pytest.fixture
def plan(project: Path):
    """Make a plan of a kernel whose reference file has one neighbour."""

    def plan(neighbour: str = "router", **given: object):
        for name, more in (("scale.yaml", AROUND), ("scale.py", NEIGHBOURS.format(name=neighbour))):
            path = project / name
            text = path.read_text()
            path.write_text(text if more in text else text + more)
        return new_plan(project / "scale.cu", {"space": project / "scale.yaml", **given})

    return plan


def test_a_neighbour_of_the_reference_file_is_found(plan) -> None:
    (around,) = plan().spec.surroundings
    assert around.links[0].before[0].function == "router"


def test_one_that_it_lacks_is_told_with_the_line_of_the_space(plan) -> None:
    with pytest.raises(KernelError, match="has no neighbour named 'router'") as caught:
        plan("other")
    assert caught.value.path.name == "scale.yaml"
    assert caught.value.path.read_text().splitlines()[caught.value.line - 1].count("router")
    assert "other" in caught.value.remedy


@pytest.mark.parametrize("device", ["host", "cuda"])
def test_a_name_that_the_file_has_not_is_refused_on_every_device(plan, device: str) -> None:
    with pytest.raises(KernelError, match="no surroundings named 'prefill'"):
        plan(surroundings="prefill", device=device)


def test_a_cpu_has_no_neighbours(plan) -> None:
    assert plan(surroundings="layer", device="host").spec.surroundings == ()


def test_who_looks_on_for_less_compares_in_more_rounds(plan) -> None:
    shares = {share: plan(enough=share).config.comparison_rounds for share in (0.02, 0.005, 0.001)}
    usual = settings.COMPARISON_ROUNDS
    assert settings.ENOUGH == 0.005
    assert shares == {0.02: usual, 0.005: usual, 0.001: settings.CLOSE_COMPARISON_ROUNDS}


def test_a_mix_keeps_the_weights_of_its_space_however_that_changes(plan, project: Path) -> None:
    assert plan().config.weights == {}
    space = project / "scale.yaml"
    text = space.read_text()
    space.write_text(text.replace("workloads: {", "workloads: {weight: 1 if N > 700 else 9, "))
    mixed = plan(mix=True).config
    assert [mixed.weights[w] for w in mixed.workloads] == [
        1.0 if w.values["N"] > 700 else 9.0 for w in mixed.workloads
    ]
    space.write_text(text)
    assert replace(mixed, weight="1").weights == dict.fromkeys(mixed.workloads, 1.0)


def test_a_workload_of_a_mix_that_never_comes_is_refused(plan, project: Path) -> None:
    space = project / "scale.yaml"
    weighted = space.read_text().replace("workloads: {", "workloads: {weight: N - 7, ")
    space.write_text(weighted)
    with pytest.raises(InputError, match="weight of N=7 is 0, and --mix needs"):
        plan(mix=True, workloads=["N=7"])
