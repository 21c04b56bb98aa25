"""A setting is written once, and every surface makes what it offers from there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tuner.model.settings import words_of

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

from house import modules, places_of_settings  # noqa: E402

# Adds a line to the model before anything else has read it, and asks every surface.
ADDED = """
import importlib.util, inspect, json, sys

spec = importlib.util.find_spec("tuner.model.settings")
before, end, after = open(spec.origin).read().partition("a session keeps it as `RunConfig`.")
line = 'class Settings:\\n    invented: int | None = setting(None, "What?", within=whole(3, 5), ' \\
    'campaign="a number", mcp="A number.", commands=(RECORD, SERVE))\\n    '
source = before.replace("class Settings:", line) + end + after
model = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
exec(compile(source, spec.origin, "exec"), model.__dict__)

import tuner
from tuner.cli import record_command, run_command
from tuner.extensions.agents import mcp_command
from tuner.extensions.agents.mcp.arguments import leading_tools
from tuner.extensions.scale.campaign.file import JobModel
from tuner.model.settings import RunConfig

commands = [each.command for each in (run_command, record_command, mcp_command)]
try:
    model.read_settings({"invented": 6})
except tuner.model.errors.InputError as error:
    refused = str(error)
print(json.dumps({
    "options": [one.opts for each in commands for one in each.params if one.name == "invented"],
    "python": [str(inspect.signature(each).parameters["invented"].annotation)
               for each in (tuner.tune, tuner.Effort, RunConfig)],
    "campaign": JobModel.model_json_schema()["properties"]["invented"]["anyOf"][0],
    "mcp": leading_tools()[0].parameters["properties"]["invented"],
    "words": list(model.words_of({"invented": 4})),
    "refused": refused,
}))
"""


def test_one_line_more_in_the_model_is_a_setting_on_every_surface() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ADDED], cwd=ROOT, capture_output=True, text=True, check=True
    )
    bounds = {"type": "integer", "minimum": 3, "maximum": 5}
    assert json.loads(done.stdout) == {
        "options": [["--invented"]] * 3,
        "python": ["int | None"] * 3,
        "campaign": bounds,
        "mcp": {**bounds, "description": "A number."},
        "words": ["--invented", "4"],
        "refused": "`invented` is 6: it is a whole number from 3 to 5\n"
        "  give another one, or leave --invented out",
    }


def test_no_other_class_or_function_lists_the_settings() -> None:
    # A report has those that a page shows, read from the session; a space has keys of these names.
    places = ["tuner.model.settings", "tuner.report.data.ReportData"]
    places.append("tuner.space.schema.SpaceModel")
    assert places_of_settings(modules()) == places


def test_settings_are_said_again_as_words() -> None:
    given = {"time_s": 90.0, "prune": False, "keep_bits": True, "peers": ["a", "b"], "model": None}
    given |= {"operators": {"ACT": "gelu"}, "workloads": "N=1", "gpus": ""}
    words = "--time 90.0s --no-prune --keep-bits --peer a --peer b --operator ACT=gelu"
    assert " ".join(words_of(given)) == f"{words} --workload N=1"
