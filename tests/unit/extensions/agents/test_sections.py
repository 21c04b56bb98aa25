"""An answer's sections in the user's file: what is taken over, and what no answer can change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.extensions.agents.sections import merge_sections
from tuner.model.errors import SpaceError
from tuner.space.yaml import parse

USER = """\
version: 1
kernel: scale
source: scale.cu
reference: scale.py
template: scale.cu.j2
axes: [N]
workloads: {tuned: [{N: 1000}]}
parameters: {block: [32]}
constraints: ["block < 64"]
default: {block: 32}
launch: [{kernel: scale, grid: [1], block: [block]}]
tolerance: {out: {relative: 1.0e-6}}
"""
LIMITS = "limits: {max_registers: 64, min_occupancy: 0.25, spills: forbid}\n"
OWN = """\
parameters: {threads: [64, 128]}
default: {threads: 64}
launch: [{kernel: scale, grid: [2], block: [threads]}]
"""


@pytest.fixture
def merged(tmp_path: Path):
    def merge(answer: str, user: str = USER) -> dict[str, object]:
        path = tmp_path / "rounds" / "space.yaml"
        original = parse(user, tmp_path / "scale.yaml")
        text = merge_sections(original, parse(answer, path), path, "template.cu.j2")
        return parse(text, path).data

    return merge


def test_the_answers_sections_take_the_place_of_the_users(merged):
    made = merged(OWN)
    assert made["parameters"] == {"threads": [64, 128]}
    assert "constraints" not in made, "they were for the template before"
    assert made["workloads"] == {"tuned": [{"N": 1000}]}
    assert made["template"] == "template.cu.j2"


def test_paths_start_from_the_new_folder(merged, tmp_path):
    made = merged(OWN, USER + 'include: [".", "my \\"own\\" headers"]\n')
    assert made["source"] == "../scale.cu"
    assert made["include"] == ["..", '../my "own" headers']


def test_the_users_limits_stay_where_the_answer_has_none(merged):
    assert merged(OWN, USER + LIMITS)["limits"]["max_registers"] == 64


def test_limits_may_be_stricter_and_an_empty_one_of_the_users_binds_nobody(merged):
    stricter = "limits: {max_registers: 32, min_occupancy: 0.5, spills: forbid}\n"
    assert merged(OWN + stricter, USER + LIMITS)["limits"]["max_registers"] == 32
    empty = "limits: {max_registers: , spills: forbid}\n"
    assert merged(OWN + stricter, USER + empty)["limits"]["max_registers"] == 32


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        ("{max_registers: 65, min_occupancy: 0.25, spills: forbid}", "max_registers"),
        ("{max_registers: '32', min_occupancy: 0.25, spills: forbid}", "max_registers"),
        ("{min_occupancy: 0.25, spills: forbid}", "max_registers"),
        ("{max_registers: 64, min_occupancy: 0.2, spills: forbid}", "min_occupancy"),
        ("{max_registers: 64, min_occupancy: 0.25, spills: allow}", "spills"),
        ("{max_registers: 64, min_occupancy: 0.25}", "spills"),
        ("{}", "max_registers"),
    ],
)
def test_looser_limits_are_refused(merged, limits, name):
    with pytest.raises(SpaceError, match=f"`limits.{name}` is looser"):
        merged(f"{OWN}limits: {limits}\n", USER + LIMITS)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("workloads: {tuned: [{N: 1}]}", "`workloads` has been changed"),
        ("tolerance: {out: {relative: 1}}", "`tolerance` has been changed"),
        ("reference: ../../other.py", "`reference` has been changed"),
        ("options: [--use_fast_math]", "`options` is not in the user's file"),
        ("include: [/]", "`include` is not in the user's file"),
        ("operator: {FAST: ['1']}", "`operator` is not in the user's file"),
        ("extra: 1", "`extra` is not in the user's file"),
        ("template: [1]", "`template` has been changed"),
        ("limits: &all {max_registers: 8}", "an anchor"),
        ("<<: {limits: {}}", "a merge"),
        ("default: {threads: 128}", "`default` is repeated"),
        ("--- {version: 1}", "second document"),
    ],
)
def test_nothing_else_of_an_answer_is_taken(merged, line, said):
    with pytest.raises(SpaceError, match=said):
        merged(f"{OWN}{line}\n", USER + LIMITS)


# In the answer the first part is one text; cut at what looks like keys, it would be sections.
HIDDEN = """\
template: 'x
limits: {max_registers: 255}
parameters: {threads: [1]}
OPENED'
limits: {max_registers: 8, min_occupancy: 1, spills: forbid}
"""


@pytest.mark.parametrize("opened", ['include: ["/etc", ', 'operator: {FAST: ["1", ', "axes: [M]"])
def test_keys_hidden_in_a_text_over_several_lines_are_no_sections(merged, opened):
    made = merged(HIDDEN.replace("OPENED", opened) + OWN, USER + LIMITS)
    assert made["limits"]["max_registers"] == 8
    assert made["parameters"] == {"threads": [64, 128]}
    assert made["axes"] == ["N"]
    assert not {"include", "operator"} & made.keys()


def test_flow_style_is_refused_with_what_to_write(merged):
    with pytest.raises(SpaceError, match="does not begin a line of its own") as caught:
        merged("{parameters: {a: [1]}, default: {a: 1}, launch: []}")
    assert "block style" in str(caught.value)


@pytest.mark.parametrize("key", ["parameters", "default", "launch"])
def test_a_missing_section_is_named(merged, key):
    left = "".join(line for line in OWN.splitlines(keepends=True) if not line.startswith(key))
    with pytest.raises(SpaceError, match=f"the section `{key}` is missing"):
        merged(left)


def test_derived_names_and_prune_go_with_the_template_that_they_were_written_for(merged):
    own = "derived: {wide: 2 * threads}\nprune: [wide > 64]\n"
    made = merged(OWN + own, USER + "derived: {half: block // 2}\nprune: [half > 8]\n")
    assert (made["derived"], made["prune"]) == ({"wide": "2 * threads"}, ["wide > 64"])
    assert not {"derived", "prune"} & merged(OWN, USER + "prune: [block > 8]\n").keys()
