"""SGLang's own script, run in part: what it is given, what is made of what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import sglang_script

COMMON = """
def get_configs_compute_bound():
    print("something that a library prints")
    return [{"BLOCK_SIZE_M": 16 * k} for k in range(1, 21)]
"""
# Says, in place of seconds, what it got; an empty cache takes a second a config more.
SCRIPT = """
import argparse, json, os
import ray
from common_utils import get_configs_compute_bound
from pathlib import Path
from ray.experimental.tqdm_ray import tqdm


@ray.remote(num_gpus=1)
class BenchmarkWorker:
    def __init__(self, seed):
        self.device, self.factor = ray.get_gpu_ids()[0], 0.5

    def tune(self, tokens, configs):
        cache = Path(os.environ["TRITON_CACHE_DIR"])
        first = not cache.exists()
        cache.mkdir(exist_ok=True)
        return sum(self.factor + first + 0.001 * tokens for config in tqdm(configs))


parser = argparse.ArgumentParser()
parser.add_argument("--model")
parser.add_argument("--tp-size", type=int)
parser.add_argument("--tune", action="store_true")
parser.add_argument("--batch-sizes", type=int, nargs="+")
parser.add_argument("--search-space-file")
args = parser.parse_args()
assert json.loads(Path(args.model, "config.json").read_text())["num_experts"] == 128
configs = json.loads(Path(args.search_space_file).read_text())
known = get_configs_compute_bound()
assert len(configs) == 4 and all(one in known for one in configs)
ray.init()
workers = [BenchmarkWorker.remote(0) for _ in range(int(ray.available_resources()["GPU"]))]
method = getattr(workers[0], "tune")
(took,) = ray.get([method.remote(size, configs) for size in args.batch_sizes])
print(f"Tuning took {took:.2f} seconds")
"""


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    (tmp_path / "common_utils.py").write_text(COMMON)
    (tmp_path / sglang_script.SCRIPT).write_text(SCRIPT)
    return tmp_path


def test_the_script_runs_on_a_part_of_its_configs(scripts: Path) -> None:
    found = sglang_script.measured(scripts, [16, 1000], 4)
    assert (found["configs"], found["of"]) == (4, 20)
    assert found["rows"] == [
        {"tokens": 16, "first_s": 6.06, "again_s": 2.06},
        {"tokens": 1000, "first_s": 10.0, "again_s": 6.0},
    ]
    # All configs are five times those, compiled once and tried for 18 numbers of tokens.
    assert found["estimated_s"] == pytest.approx(5 * (4.0 + 18 * 4.03), abs=0.1)


def test_a_script_that_fails_or_says_nothing_is_told(scripts: Path) -> None:
    (scripts / sglang_script.SCRIPT).write_text("print('hello')")
    with pytest.raises(SystemExit, match="does not say how long"):
        sglang_script.measured(scripts, [16], 4)
    (scripts / sglang_script.SCRIPT).write_text("raise RuntimeError('no such model')")
    with pytest.raises(SystemExit, match="no such model"):
        sglang_script.measured(scripts, [16], 4)
