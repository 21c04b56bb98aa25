"""The pages say what the program does: options, keys, levels, figures and links."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from rounds_sample import session_with_rounds

from tuner.cli import COMMANDS, RUN, cli
from tuner.cli.ending import agent_object
from tuner.model.statistics import geometric_mean
from tuner.report.data import from_session
from tuner.report.terminal import json_of
from tuner.session.events import Expectation
from tuner.space.load import load_definition

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from house import CORE, EXTENSIONS  # noqa: E402

CLI = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "docs" / "examples" / "topk_softmax"
STORY = (EXAMPLE / "README.md").read_text(encoding="utf-8")
RESULT = EXAMPLE / "result.json"
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "docs" / "examples").glob("*/README.md"),
]
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def options_of(name: str) -> list[str]:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    return [next(word for word in one.opts if word.startswith("--")) for one in options]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {text.replace(" ", "-") for text in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    prose = CODE.sub("", page.read_text(encoding="utf-8"))
    for place, anchor in LINK.findall(prose):
        linked = (page.parent / place).resolve() if place else page
        assert linked.exists(), place
        assert not anchor or anchor in anchors(linked), f"{place}#{anchor}"


def test_every_file_of_ours_that_is_named_exists() -> None:
    named = re.compile(
        r"\b(?:tuner|tests|benchmarks|scripts|docs)/[\w./-]*\w\.(?:py|md|json|h|j2)\b"
    )
    sources = [*(ROOT / "tuner").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    missing = {
        f"{page.relative_to(ROOT)}: {path}"
        for page in (*PAGES, *sources)
        for path in named.findall(page.read_text(encoding="utf-8"))
        if not (ROOT / path).exists()
    }
    assert missing == set()


def test_the_table_of_a_run_has_every_option() -> None:
    table = CLI.partition("## `tune KERNEL.cu`")[2].partition("\n\nThe first line")[0]
    stated = re.findall(r"^\| `(--[a-z-]+)", table, re.MULTILINE)
    assert sorted(stated) == sorted(options_of(RUN))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_row_of_a_command_has_every_option(name: str) -> None:
    (row,) = re.findall(rf"^\| `tune {name}\b.*$", CLI, re.MULTILINE)
    stated = set(re.findall(r"`(--[a-z-]+)", row))
    assert stated == set(options_of(name))


def keys(value: Any) -> Any:
    """What an object is made of; of a list the first one speaks for all."""
    if isinstance(value, dict):
        return {name: keys(one) for name, one in value.items()}
    return [keys(value[0])] if isinstance(value, list) and value else None


def test_the_example_of_the_json_object_has_its_keys(tmp_path: Path) -> None:
    (text,) = re.findall(r"```json\n(.*?)```", CLI, re.DOTALL)
    with session_with_rounds(tmp_path / "session") as session:
        data = from_session(session)
    made = json_of(data) | {"agent": agent_object(data, None)}
    shown = json.loads(text)
    assert list(keys(shown)) == list(made)
    for name in ("workloads", "rounds"):
        assert keys(shown[name])[0].keys() == keys(made[name])[0].keys()
    assert keys(shown["rounds"])[0]["expectations"] == keys(made["rounds"])[0]["expectations"]
    agent = made["agent"]
    assert isinstance(agent, dict)
    assert keys(shown["agent"]) == keys(agent)
    assert shown["trials"].keys() == keys(made["trials"]).keys()


def test_the_map_of_the_packages_is_the_one_that_imports_keep() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    stated = re.findall(r"^(\w+)/ +\S", page.partition("## The map")[2], re.MULTILINE)
    assert stated == [*reversed(CORE), *EXTENSIONS]


class Figures:
    """What the files of the worked example come to."""

    def __init__(self) -> None:
        found = json.loads(RESULT.read_text(encoding="utf-8"))
        self.rounds = [one for one in found["rounds"] if one["end"] == "searched"]
        self.trials = sum(found["trials"].values())
        self.seconds = found["seconds"]
        named = {
            ",".join(f"{axis}={size}" for axis, size in one["workload"].items()): one
            for one in found["workloads"]
        }
        tuned = {key: one for key, one in named.items() if not one["held_out"]}
        self.speedup = geometric_mean(one["speedup"] for one in tuned.values())
        self.held_out = geometric_mean(o["speedup"] for o in named.values() if o["held_out"])
        self.largest_us = tuned["T=8192,E=256"]["tuned_us"]
        self.largest_isolated_us = found["isolated_us"]["T=8192,E=256"]


@pytest.fixture(scope="module")
def figures() -> Figures:
    return Figures()


def test_the_figures_of_the_worked_example_are_those_of_its_files(figures: Figures) -> None:
    for said in (
        f"| {figures.speedup:.2f}x |",
        f"| {figures.held_out:.2f}x |",
        f"| {figures.largest_us:.2f} us ({figures.largest_isolated_us:.2f} us without overlap)",
        f"took {figures.seconds:.0f} s in all, with {figures.trials:,} trials",
    ):
        assert said in STORY, said


def test_the_readme_says_the_same_of_the_worked_example(figures: Figures) -> None:
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"{figures.speedup:.2f}x over its plain baseline" in readme


def test_each_round_of_the_worked_example_is_told_as_it_was(figures: Figures) -> None:
    told = re.findall(r"^\| (\d) \| [^|]+ \| ([\d.]+)x \| ([\d.]+)x \| ([\d.]+)x \|$", STORY, re.M)
    assert told == [
        (
            str(one["round"]),
            f"{one['default_speedup']:.2f}",
            f"{one['speedup']:.2f}",
            f"{one['search_gain']:.2f}",
        )
        for one in figures.rounds
    ]


def test_each_prediction_of_the_worked_example_stands_beside_its_outcome(figures: Figures) -> None:
    told = re.findall(
        r"^\| (\d) \| (\w+) \| `(\w+)` \| ([^|]+) \| ([\d.]+) \| ([\d.]+) \|$", STORY, re.M
    )
    assert told == [
        (
            str(one["round"]),
            one["base"],
            moved["metric"],
            moved["workload"] or "all",
            f"{moved['predicted']:g}",
            f"{moved['measured']:.2f}",
        )
        for one in figures.rounds
        for moved in one["expectations"]
    ]


def test_the_plans_in_the_folder_are_those_that_were_measured(figures: Figures) -> None:
    for one in figures.rounds:
        folder = EXAMPLE / f"round-{one['round']:02}"
        plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        assert (plan["hypothesis"], plan["change"]) == (one["hypothesis"], one["change"])
        promised = [Expectation(**expected) for expected in plan["expectations"]]
        assert promised == [
            Expectation(moved["metric"], moved["predicted"], moved["workload"] or "")
            for moved in one["expectations"]
        ]


def operator_spaces() -> list[Path]:
    kernels = sorted((ROOT / "kernels/sglang").glob("*.cu"))
    return [ROOT / f"search_spaces/sglang/{path.stem}.yaml" for path in kernels]


def test_the_table_of_kernels_names_every_operator_with_its_choices() -> None:
    rows = {}
    for line in (ROOT / "docs/kernels.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            cells = [re.findall(r"\w+", cell) for cell in line.split("|")[1:-1]]
            (name,), axes, _, operators, parameters = cells
            rows[name] = (axes, operators, parameters)
    definitions = [load_definition(path) for path in operator_spaces()]
    assert rows == {
        one.spec.name: (
            list(one.spec.axes),
            [operator.name for operator in one.spec.operators],
            list(one.space.names),
        )
        for one in definitions
    }


def test_no_template_depends_on_the_number_of_tokens() -> None:
    for path in (ROOT / "templates/sglang").glob("*.cu.j2"):
        written = re.findall(r"@\{(.*?)\}@|//%(.*)|/\*%(.*?)%\*/", path.read_text(encoding="utf-8"))
        assert not [parts for parts in written if re.search(r"\bT\b", " ".join(parts))], path
