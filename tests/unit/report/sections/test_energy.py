"""The report's energy: a table and a front per workload, one line each, one JSON object."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.support.drawings import of_class, parsed, shown, texts
from tests.unit.report.conftest import make_result
from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Energy, EnergyWindow, Variant
from tuner.report.html import render_report
from tuner.report.sections.energy import energy_json, energy_lines, energy_parts

WORKLOAD = Workload.of({"T": 128, "D": 11008})


def variant(block: int) -> Variant:
    return Variant(INITIAL, Config.of({"block": block}))


def window(power_w: float, time_us: float | None = None, **seen) -> EnergyWindow:
    return EnergyWindow(power_w * 5.0, 5.0, time_us, **seen)


ENERGIES = [
    Energy(WORKLOAD, "idle", window(100.0)),
    Energy(WORKLOAD, "baseline", window(500.0, 20.0)),
    Energy(WORKLOAD, "variant", window(650.0, 10.0, clock_mhz=1755, temperature_c=61), variant(32)),
    Energy(WORKLOAD, "variant", window(500.0, 12.0), variant(64)),
    Energy(WORKLOAD, "variant", window(600.0, 14.0), variant(128)),
    Energy(WORKLOAD, "variant", window(505.0, 12.0), variant(64)),
    Energy(WORKLOAD, "baseline", window(505.0, 20.0)),
    Energy(WORKLOAD, "idle", window(102.0)),
]
RESULTS = [replace(make_result(WORKLOAD, 1.6), config=Config.of({"block": 64}))]


def test_the_page_and_the_object_hold_every_program_and_what_spoils_a_measurement(data, golden):
    spoiled = [
        *ENERGIES[:-1],
        Energy(WORKLOAD, "variant", window(700.0, 9.0, limited_by=("power limit",)), variant(256)),
        Energy(WORKLOAD, "variant", window(700.0, 9.5, cold=False), variant(512)),
        Energy(WORKLOAD, "idle", window(115.0)),
    ]
    runs = [replace(data, energies=(*one,), results=(*RESULTS,)) for one in (ENERGIES, spoiled)]
    pages = [shown(render_report(run), "Energy") for run in runs]
    golden("energy.txt", "\n\n".join(pages))
    golden("energy.json", json.dumps(energy_json(ENERGIES, RESULTS), indent=1))


def test_the_saving_names_its_range_and_the_gross_ratio():
    (part,) = energy_parts(ENERGIES, RESULTS)
    assert part.saving.startswith("4.818 mJ a call above idle, the baseline 8.03 mJ: 1.67x [1.65, ")
    assert part.saving.endswith("less energy; with idle 1.67x")
    assert energy_lines(ENERGIES, RESULTS, "energy") == [
        f"energy         T=128 D=11008: {part.saving}"
    ]
    assert energy_lines(ENERGIES, RESULTS, "time") == []


def test_without_a_result_nothing_is_chosen():
    (part,) = energy_parts(ENERGIES, [])
    assert part.saving == ""
    assert not any(part.was_chosen(one) for one in part.programs)
    assert energy_lines(ENERGIES, [], "edp") == ["energy         T=128 D=11008: nothing to compare"]
    assert energy_parts([], RESULTS) == []
    assert energy_parts(ENERGIES[:1], RESULTS) == [], "an interrupted stage that only idled"


def test_the_chart_draws_the_front_in_steps_and_every_program_once():
    (part,) = energy_parts(ENERGIES, RESULTS)
    root = parsed(part.chart)
    assert len(of_class(root, "roof")) == 2
    assert len(of_class(root, "hollow")) == 1
    assert len(of_class(root, "marker")) == 3
    assert "baseline" in texts(root)
    assert "2 on the front" in root.get("aria-label", "")


def test_a_single_program_has_a_chart():
    (part,) = energy_parts(ENERGIES[:2], RESULTS)
    assert of_class(parsed(part.chart), "hollow")


def test_the_section_escapes_what_comes_from_outside(data):
    hostile = Variant("<script>", Config.of({"block": 32}))
    energies = (*ENERGIES, Energy(WORKLOAD, "variant", window(500.0, 11.0), hostile))
    made = render_report(replace(data, energies=energies))
    assert "<script>: block=32" not in made
    assert "&lt;script&gt;: block=32" in made
