"""Python kernels on the CPU: what goes wrong in one costs its trial, never the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from callable_project import SPACE, callable_project, evaluator_of, read_project
from fake_triton import write_autotuner

from tuner.extensions.cpu import callables
from tuner.extensions.cpu.device import HostDevice
from tuner.model.config import Config
from tuner.model.errors import KernelError
from tuner.model.kernel import Workload
from tuner.model.trial import Status, Trial
from tuner.space.load import load_definition
from tuner.tuning.evaluator import Evaluator

pytest.importorskip("torch")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
PAGE = Path(__file__).parents[3] / "docs/callables.md"
WORKLOAD = Workload.of({"T": 16, "D": 256})
RIGHT = Config.of({"pieces": 1, "shift": True, "method": "exp"})
WRONG = Config.of({"pieces": 2, "shift": True, "method": "exp"})
BEYOND = "import ctypes; ctypes.memset(out.data_ptr() + out.nbytes, 7, 4)"
BEFORE = "import ctypes; ctypes.memset(out.data_ptr() - 4, 7, 4)"
# Which nobody touches, or it would be taken from whoever else runs here.
ALL_MEMORY = "kept = [bytes(1 << 32) for _ in range(1 << 20)]"
OUT_OF_RESOURCES = (
    "raise type('OutOfResources', (Exception,), {'__module__': 'triton.runtime.errors'})"
    "('shared memory')"
)
FIRST_ONLY = (
    "launch.calls = getattr(launch, 'calls', 0) + 1; part = part * (1 if launch.calls < 2 else 2)"
)
VARYING = "import random; part = part * random.choice([1, 1 + 1e-6])"
UNTELLABLE = "raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})()"
BASELINE = "        torch.softmax(x * scale, 1, out=out)\n"
# Only the first config that the pruning leaves gives the right result.
AUTOTUNED = """\
        from triton.runtime.autotuner import Autotuner, Config
        class Scaled:
            def run(self, out, source, scale):
                assert not out.any(), "it was reset"
                out += source * scale
        configs = [Config(scale=scale) for scale in (2, 1, 3)]
        tuner = Autotuner(Scaled(), configs, lambda found: found[1:], ["out"], CACHED)
        tuner.run(out=out, source=torch.softmax(x * scale, 1))
"""
TRITON = '''"""A softmax whose rows Triton scales."""

import triton
import triton.language as tl


@triton.autotune(
    configs=[triton.Config({"SCALE": scale, "BLOCK": 64}) for scale in (2, 1, 3)],
    key=["n"],
    prune_configs_by={"early_config_prune": lambda configs, named, **more: configs[1:]},
    cache_results=True,
)
@triton.jit
def scaled(out, source, n, SCALE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(source + i, mask=i < n) * SCALE, mask=i < n)
'''
TRITONS_LAUNCH = """\
        n = out.numel()
        source = torch.softmax(x * scale, 1)
        scaled[lambda chosen: (triton.cdiv(n, chosen["BLOCK"]),)](out, source, n)
"""
IN_BFLOAT16 = '''"""A softmax of rows, which Triton multiplies with the identity in bfloat16."""

import triton
import triton.language as tl


@triton.jit
def multiplied(out, source, n, identity, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    right = tl.load(identity + i[:, None] * BLOCK + i[None, :])
    for first in range(0, n, BLOCK):
        at = i[:, None] * n + first + i[None, :]
        left = tl.load(source + at).to(tl.bfloat16)
        doubled = tl.dot(left, right) * 0.5 + ((left + left) * 0.5 - left).to(tl.float32)
        tl.store(out + at, doubled + tl.dot((left * 0.5).to(tl.bfloat16), right))
'''
IN_BFLOAT16_LAUNCH = """\
        identity = torch.eye(16, dtype=torch.bfloat16)
        multiplied[(1,)](out, torch.softmax(x * scale, 1), axes["D"], identity, BLOCK=16)
"""
DOCSTRING = (
    '"""A softmax of rows by PyTorch, some rows at a time: a kernel that is a Python function."""\n'
)
HERE = "        part = x[first : first + rows] * scale\n"


@contextmanager
def opened(folder: Path) -> Iterator[Evaluator]:
    definition = read_project(folder)
    device = HostDevice(definition.spec, {"TEMPERATURE": "one"}, run_timeout_s=1.0)
    try:
        yield evaluator_of(definition, device)
    finally:
        device.close()


def tried(evaluator: Evaluator, config: Config) -> Trial:
    return evaluator.finish(evaluator.start(WORKLOAD, config), stage="finals")


def test_the_example_of_the_page_is_right(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for language, name in (("python", "kernels/softmax.py"), ("yaml", "spaces/softmax.yaml")):
        text = page.partition(f"```{language}\n")[2].partition("```")[0]
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text, encoding="utf-8")
    definition = load_definition(tmp_path / "spaces/softmax.yaml")
    workload = Workload.of({"T": 64, "D": 1024})
    with closing(HostDevice(definition.spec, {}, run_timeout_s=10.0)) as device:
        evaluator = evaluator_of(definition, device)
        assert evaluator.baseline(workload).status is Status.CORRECT
        started = evaluator.start(workload, Config.of({"pieces": 4}))
        assert evaluator.finish(started, stage="finals").status is Status.CORRECT


def test_the_baseline_and_configs_are_verified_and_timed(tmp_path: Path) -> None:
    with opened(callable_project(tmp_path)) as evaluator:
        baseline = evaluator.baseline(WORKLOAD)
        assert baseline.status is Status.CORRECT
        trial = tried(evaluator, RIGHT)
        assert trial.status is Status.CORRECT, trial.reason
        assert trial.resources is not None
        assert trial.resources.registers is None
        made = [evaluator.baseline_program(WORKLOAD), evaluator.program(WORKLOAD, RIGHT)]
        assert len(evaluator.device.compare(made, rounds=3).times_us) == 3


def test_an_array_that_is_changed_in_place_is_right_after_timed_calls_too(tmp_path: Path) -> None:
    changes = (BASELINE, f"{BASELINE}        x.neg_()\n")
    refers = ("sum(axis=1, keepdims=True)}", "sum(axis=1, keepdims=True), 'x': -inputs['x']}")
    folder = callable_project(tmp_path, changes, refers, space=("fill:", "role: inout, fill:"))
    space = folder / SPACE
    space.write_text(space.read_text().replace("tolerance: {", "tolerance: {x: {relative: 0.0}, "))
    with opened(folder) as evaluator:
        baseline = evaluator.baseline(WORKLOAD)
        assert baseline.status is Status.CORRECT, baseline.reason


# What a config with the number of one of these as its method does, and what becomes of it.
FAULTS = [
    ("raise ValueError('no such tile')", Status.LAUNCH, "ValueError: no such tile"),
    ("raise NotImplementedError('only one piece')", Status.CONSTRAINT, "only one piece"),
    ("import a_library_that_is_not_there", Status.NOT_RECORDED, "a_library_that_is_not_there"),
    ("import time; time.sleep(60)", Status.TIMEOUT, "no answer within"),
    ("import os; os._exit(7)", Status.LAUNCH, "exit code 7"),
    ("x.zero_()", Status.INCORRECT, "x"),
    ("return {'out': out.double()}", Status.INCORRECT, "torch.float64"),
    ("return {'result': out}", Status.LAUNCH, "none of the outputs"),
    (VARYING, Status.INCORRECT, " same inputs"),
    (FIRST_ONLY, Status.INCORRECT, "expected"),
    (BEYOND, Status.INCORRECT, "wrote outside its buffers"),
    (BEFORE, Status.INCORRECT, "wrote outside its buffers"),
    ("out.resize_(out.numel() * 2)", Status.LAUNCH, "resize"),
    (ALL_MEMORY, Status.RESOURCE_LIMIT, "MemoryError"),
    ("raise MemoryError('no room')", Status.RESOURCE_LIMIT, "MemoryError: no room"),
    (OUT_OF_RESOURCES, Status.RESOURCE_LIMIT, "OutOfResources: shared memory"),
    ("raise torch.OutOfMemoryError('no room')", Status.RESOURCE_LIMIT, "OutOfMemoryError"),
    ("torch.empty(1 << 52)", Status.RESOURCE_LIMIT, "can't allocate memory"),
    ("raise RuntimeError('CUDA error: out of memory')", Status.RESOURCE_LIMIT, "CUDA error"),
    ("return out", Status.LAUNCH, "returns a Tensor, no dict of outputs: return {'out': tensor}"),
    ("return {'out': [1]}", Status.LAUNCH, "returns a list of int for 'out', not a tensor"),
    (UNTELLABLE, Status.LAUNCH, "its text raises ZeroDivisionError"),
    ("import sys; sys.exit(3)", Status.LAUNCH, "SystemExit: 3"),
    ("config.clear(); tensors.clear(); axes.clear()", Status.LAUNCH, "KeyError"),
]  # fmt: skip


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    """One device for all: whatever a config did, the next one runs there."""
    lines = [f"            case '{number}': {line}\n" for number, (line, *_) in enumerate(FAULTS)]
    edit = (HERE, f"{HERE}        match config['method']:\n{''.join(lines)}")
    with opened(callable_project(tmp_path_factory.mktemp("faulty"), edit)) as evaluator:
        assert tried(evaluator, RIGHT).status is Status.CORRECT
        yield evaluator


@pytest.mark.parametrize(
    ("number", "status", "said"),
    [(number, *rest) for number, (_, *rest) in enumerate(FAULTS)],
    ids=[line for line, *_ in FAULTS],
)
def test_a_config_that_misbehaves_has_its_status_and_the_next_one_runs(
    faulty: Evaluator, monkeypatch: pytest.MonkeyPatch, number: int, status: Status, said: str
) -> None:
    wrong = Config.of({**WRONG, "method": str(number)})
    with monkeypatch.context() as shortened:
        if status is Status.TIMEOUT:
            shortened.setattr(callables, "FIRST_CALL_S", 4.0)
        trial = tried(faulty, wrong)
    assert trial.status is status, trial.reason
    assert said in trial.reason
    assert tried(faulty, RIGHT).status is Status.CORRECT


def test_who_leaves_no_zeros_is_not_another_s_fault(tmp_path: Path) -> None:
    zeroed = "  - {name: marks, dtype: float32, shape: [T], role: scratch, zeroed: true}\n"
    edit = ("workloads:\n", f"{zeroed}workloads:\n")
    uses = "        torch.softmax(x * scale, 1, out=out); out += tensors['marks'].sum()\n"
    leaves = f"{HERE}        tensors['marks'] += 1\n"
    with opened(callable_project(tmp_path, (BASELINE, uses), (HERE, leaves), space=edit)) as made:
        programs = [made.baseline_program(WORKLOAD), made.program(WORKLOAD, RIGHT)]
        baseline, config = made.device.compare(programs, rounds=6).faults
    assert not baseline
    assert "marks" in config


def test_a_call_may_take_a_part_of_the_memory_that_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_bytes = 8 << 30
    monkeypatch.setattr("tuner.extensions.cpu.device.available_bytes", lambda: free_bytes)
    # Which nobody touches.
    takes = f"kept = bytes(int(config['pieces'] * 0.4 * {free_bytes}))"
    with opened(callable_project(tmp_path, (HERE, f"{HERE}        {takes}\n"))) as evaluator:
        assert tried(evaluator, RIGHT).status is Status.CORRECT
        most = tried(evaluator, WRONG)
        assert most.status is Status.RESOURCE_LIMIT
        assert "MemoryError; calls may take 6.44 GB here" in most.reason


def test_configs_are_told_apart_by_the_bits_of_their_outputs(tmp_path: Path) -> None:
    in_pieces = Config.of({**RIGHT, "pieces": 4})
    in_double = Config.of({**RIGHT, "method": "double"})
    with opened(callable_project(tmp_path)) as evaluator:
        evaluator.tells_bits = True
        trials = [tried(evaluator, one) for one in (RIGHT, in_pieces, in_double)]
        known = [trial.correctness.bits for trial in trials if trial.correctness]
        assert known[0] == known[1] != known[2]
        assert "" not in known
        again = evaluator.finish(evaluator.start(WORKLOAD, RIGHT))
        assert again.correctness is not None
        assert again.correctness.bits == known[0], "with fewer kinds of input, too"
        model, same, other = (
            evaluator.program(WORKLOAD, one) for one in (RIGHT, in_pieces, in_double)
        )
        device = evaluator.device
        assert "bits" in device.capabilities
        told = [device.bits(one, 7).correctness for one in (model, same, other)]
        assert told[0] == told[1]
        kinds = told[0].input_kinds
        assert {"normal", "x3", "negated"} < {*kinds}
        pairs = zip(told[0].bits.split(), told[2].bits.split(), strict=True)
        assert [one == two for one, two in pairs].count(False) > 3


def test_the_line_of_what_it_raises_is_told(tmp_path: Path) -> None:
    edit = (HERE, f"{HERE}        assert config['pieces'] == 1, 'one piece'\n")
    folder = callable_project(tmp_path, edit)
    text = (folder / "kernels/row_softmax.py").read_text()
    line = text[: text.index("assert config")].count("\n") + 1
    with opened(folder) as evaluator:
        assert f"line {line}: AssertionError: one piece" in tried(evaluator, WRONG).reason


def test_a_baseline_that_lacks_a_library_says_what_to_install(tmp_path: Path) -> None:
    edit = (
        "        torch.softmax(",
        "        import a_library_that_is_not_there\n        torch.softmax(",
    )
    with opened(callable_project(tmp_path, edit)) as evaluator:
        with pytest.raises(KernelError, match="a_library_that_is_not_there") as raised:
            evaluator.baseline(WORKLOAD)
        assert raised.value.remedy == "install what it imports where tune runs"


RETURNED = '        return {"out": torch.softmax(x * scale, 1)}\n'
BESIDE = "        from pathlib import Path\n        assert Path(__file__).is_file()\n"


@pytest.mark.parametrize(
    ("edits", "space"),
    [
        ([(f"{BASELINE}        return", RETURNED.rstrip())], ("", "")),
        ([(BASELINE, BESIDE + BASELINE)], ("", "")),
        pytest.param(
            [(DOCSTRING, TRITON), (BASELINE, TRITONS_LAUNCH)], ("", ""), marks=needs_triton
        ),
        pytest.param(
            [(DOCSTRING, IN_BFLOAT16), (BASELINE, IN_BFLOAT16_LAUNCH)],
            ("relative: 1.0e-4", "relative: 4.0e-3"),
            marks=needs_triton,
        ),
    ],
    ids=[
        "results may be returned",
        "a kernel finds what lies beside its file",
        "triton's own autotuner asks for no gpu under its interpreter",
        "triton's interpreter loops to a number and computes in bfloat16",
    ],
)
def test_a_baseline_is_right(
    tmp_path: Path, edits: list[tuple[str, str]], space: tuple[str, str]
) -> None:
    with opened(callable_project(tmp_path, *edits, space=space)) as evaluator:
        assert evaluator.baseline(WORKLOAD).status is Status.CORRECT


@pytest.mark.parametrize("cached", ["False", "True"])
def test_tritons_autotuner_takes_the_first_config_that_its_pruning_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: str
) -> None:
    monkeypatch.syspath_prepend(write_autotuner(tmp_path / "library"))
    folder = callable_project(tmp_path, (BASELINE, AUTOTUNED.replace("CACHED", cached)))
    with opened(folder) as evaluator:
        assert evaluator.baseline(WORKLOAD).status is Status.CORRECT
