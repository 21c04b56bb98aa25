"""From a profile to its class and its findings, those of other packages included."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from profiles import code, launch, profile, waits

from tuner.analysis.base import Bottleneck, Profile, Rule
from tuner.analysis.diagnosis import RULES, diagnose
from tuner.analysis.metrics import DRAM_BYTES, MEMORY_THROUGHPUT, SM_THROUGHPUT
from tuner.model.trial import MOST, Finding, Occupancy, Resources

HEALTHY = profile(time_us=110)
PLUGIN = """
from tuner.model.trial import Finding
from tuner.analysis.base import Bottleneck, Rule

def find(profile):
    return Finding("ours", "3 of them.", "Fewer.", 3.0, weight=0.5)

def fail(profile):
    raise KeyError("no such counter")

def nonsense(profile):
    return "a sentence"

def heavy(profile):
    return Finding("heavy", "1 of them.", "Fewer.", 1.0, weight=7.0)

RULE = Rule("ours", frozenset(Bottleneck), find)
FAILING = Rule("failing", frozenset(Bottleneck), fail)
NONSENSE = Rule("nonsense", frozenset(Bottleneck), nonsense)
HEAVY = Rule("heavy", frozenset(Bottleneck), heavy)
TAKEN = Rule("occupancy", frozenset(Bottleneck), find)
NUMBER = 3
"""


def rule(
    name: str, weight: float = 0.5, bounds: frozenset[Bottleneck] = frozenset(Bottleneck)
) -> Rule:
    def find(_: Profile) -> Finding:
        return Finding(name, f"{name} 1.", "Change it.", 1.0, weight=weight)

    return Rule(name, bounds, find)


def install(folder: Path, *entries: str) -> None:
    metadata = folder / "other_diagnoses-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: other-diagnoses\n")
    (metadata / "entry_points.txt").write_text("\n".join(["[tuner.diagnosis]", *entries]))
    (folder / "other_diagnoses.py").write_text(PLUGIN)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_class_decides_which_rules_run() -> None:
    rules = [
        rule("both"),
        rule("elsewhere", bounds=frozenset({Bottleneck.COMPUTE, Bottleneck.LAUNCH})),
    ]
    kind, findings = diagnose(HEALTHY, rules)
    assert kind is Bottleneck.MEMORY
    assert [finding.topic for finding in findings] == ["both"]


def test_the_weightiest_findings_are_kept_in_order() -> None:
    rules = [rule(f"r{index}", weight=index / 10) for index in range(10)]
    _, findings = diagnose(HEALTHY, rules)
    assert [finding.topic for finding in findings] == [f"r{index}" for index in range(9, 3, -1)]
    assert len(findings) == MOST


def test_weights_shrink_towards_the_roofline() -> None:
    weights = [
        diagnose(profile(time_us=time), [rule("any", 0.8)])[1][0].weight for time in (400, 125, 100)
    ]
    assert weights == pytest.approx([0.6, 0.16, 0.04])


def test_of_a_healthy_kernel_nothing_is_found() -> None:
    assert diagnose(HEALTHY) == (Bottleneck.MEMORY, ())


def test_a_kernel_with_many_faults_is_told_the_costliest_first() -> None:
    bad = profile(
        time_us=1000,
        launches=[launch(threads=512)],
        resources=Resources(168, spill_store_bytes=64, spill_load_bytes=64),
        occupancy=Occupancy(0.25, 1, "registers"),
        codes=[code({"global_load": 8, "barrier": 1}, load_bits={16: 8}, lines={"global_load": 5})],
        counters={
            DRAM_BYTES: 2.1e9,
            MEMORY_THROUGHPUT: 45.0,
            SM_THROUGHPUT: 20.0,
            **waits(long_scoreboard=12.0, barrier=2.0),
        },
        hot_lines=[(5, 0.8)],
    )
    kind, findings = diagnose(bad)
    assert kind is Bottleneck.LATENCY
    assert [finding.topic for finding in findings] == [
        "redundant_traffic",
        "warp_stalls",
        "vector_width",
        "occupancy",
        "register_spills",
    ]


def test_without_counters_only_what_code_and_compiler_show_is_found() -> None:
    static = profile(
        resources=Resources(168, spill_store_bytes=64, spill_load_bytes=64),
        occupancy=Occupancy(0.25, 1, "registers"),
        codes=[code({"global_load": 8}, load_bits={16: 8})],
    )
    kind, findings = diagnose(static)
    assert kind is Bottleneck.LATENCY
    assert {finding.topic for finding in findings} == {
        "vector_width",
        "occupancy",
        "register_spills",
    }
    assert not any("counters" in finding.text for finding in findings)


def test_every_diagnosis_has_a_name_of_its_own() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)


def test_a_rule_of_another_package_is_found_and_runs(folder: Path) -> None:
    install(folder, "ours = other_diagnoses:RULE")
    assert diagnose(profile(time_us=200))[1][0].text == "3 of them."


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (
            "gone = no_such_module:RULE",
            "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("number = other_diagnoses:NUMBER", "is of type int, not tuner.analysis.base.Rule"),
        ("taken = other_diagnoses:TAKEN", "has the name of another, 'occupancy'"),
        ("failing = other_diagnoses:FAILING", "failed: KeyError: 'no such counter'"),
        ("nonsense = other_diagnoses:NONSENSE", "returned a value of type str, not a Finding"),
        ("heavy = other_diagnoses:HEAVY", "returned a weight of 7.0, not of 0 to 1"),
    ],
)
def test_a_broken_rule_of_another_package_costs_only_its_own_finding(
    folder: Path, entry: str, text: str
) -> None:
    install(folder, entry, "ours = other_diagnoses:RULE")
    _, findings = diagnose(profile(time_us=200))
    assert [finding.topic for finding in findings] == ["ours", entry.split(" = ", maxsplit=1)[0]]
    assert findings[1].text == f"The diagnosis `{entry}` of other-diagnoses {text}."
    assert findings[1].weight == 0.0


def test_rules_that_are_given_are_all_that_run(folder: Path) -> None:
    install(folder, "ours = other_diagnoses:RULE")
    assert diagnose(replace(HEALTHY), [])[1] == ()
