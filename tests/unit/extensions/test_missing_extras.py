"""Without the library of an extra, what needs it is one error that names the extra."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tuner import plugins

ROOT = Path(__file__).parents[3]
# Of all extras but those that tests and checks alone need.
LIBRARIES = (
    *("cupy", "cupyx", "dask", "distributed", "optuna_dashboard", "msgpack", "elftools", "mcp"),
    *("mcp_types", "psycopg", "pyopencl", "torch"),
)
CODE = """
import importlib.abc, json, sys
from click.testing import CliRunner

libraries, asked = json.load(sys.stdin)

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in libraries:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in libraries else find_spec(name, *rest)
from tuner.cli import cli
answers = [CliRunner().invoke(cli, words, prog_name="tune") for words in asked]
print(json.dumps([(one.exit_code, one.output, repr(one.exception)) for one in answers]))
"""
SILU, SUM = "kernels/sglang/silu_and_mul.cu", "kernels/portable/row_sum"
SCHEDULER, SERVER = "tcp://192.0.2.1:8786", "postgresql://192.0.2.1/store"
MISSING = {
    ("mcp",): "mcp",
    ("worker", SCHEDULER): "cluster",
    (SILU, "--cluster", SCHEDULER): "cluster",
    ("knowledge", "list", "--store", SERVER): "postgresql",
    ("session", "copy", "kernels", "--store", SERVER): "postgresql",
    ("session", "fetch", "id", "fetched", "--store", SERVER): "postgresql",
    ("session", "forget", "id", "--store", SERVER): "postgresql",
    ("session", "list", "--store", SERVER): "postgresql",
    ("check", "search_spaces/portable/row_sum.hip.yaml"): "hip",
    (f"{SUM}.cl", "--device", "opencl"): "opencl",
}
HELP = tuple((name, "--help") for name in plugins.names_of(plugins.COMMANDS))


@pytest.fixture(scope="module")
def answers() -> dict[tuple[str, ...], tuple[int, str, str]]:
    """What `tune` answers in a process that has none of the libraries."""
    asked = [*MISSING, *HELP]
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        input=json.dumps([LIBRARIES, asked]),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(asked, map(tuple, json.loads(done.stdout)), strict=True))


@pytest.mark.parametrize("words", MISSING, ids=" ".join)
def test_one_error_says_which_extra_to_install(words, answers):
    code, output, _ = answers[words]
    assert code == 2
    assert output.count("Error: ") == 1
    assert f"pip install -e '.[{MISSING[words]}]'" in output


@pytest.mark.parametrize("words", HELP, ids=" ".join)
def test_every_command_tells_its_options(words, answers):
    code, output, exception = answers[words]
    assert code == 0, exception
    assert output.startswith("Usage: tune")
