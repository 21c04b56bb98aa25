"""A trace set as it is written, in FlashInfer-Bench's own loader and builders."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bench_packages
import kept
import pytest
from dispatch_sample import COMPARISONS, SPACE, write_project, write_session
from operator_sessions import OPERATORS, choices, write_operator_session
from slow import mostly_slow

torch = pytest.importorskip("torch")

from tuner.compiler.pool import NvrtcPool  # noqa: E402
from tuner.extensions.export.packages import export_package  # noqa: E402
from tuner.extensions.export.winners import winners_of  # noqa: E402
from tuner.model.errors import TunerError  # noqa: E402

# Of the experts' order in `moe_align_block_size` several are right.
SAYABLE = [name for name in OPERATORS if name != "moe_align_block_size"]
# One has scratch and two launches, one writes where it reads, one has sizes that no input tells.
BUILT = ("linear_add_rmsnorm", "fused_add_rmsnorm", "per_token_group_quant")
QUICK = ("rmsnorm", "silu_and_mul", "fused_qk_norm_rope")
# Of its arrays together; larger definitions differ in their sizes alone.
MOST_NUMBERS = 1 << 20
# Of a workload: drawing the weights of a language model's head and storing them takes minutes.
MOST_BYTES = 16 << 20

Written = Callable[..., Path]


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """As much of FlashInfer-Bench as loads and builds trace sets."""
    folder = str(bench_packages.packages())
    sys.path.insert(0, folder)
    from flashinfer_bench import TraceSet
    from flashinfer_bench.bench import utils
    from flashinfer_bench.compile import BuilderRegistry

    yield SimpleNamespace(
        load=lambda path: TraceSet.from_path(str(path)),
        builders=BuilderRegistry.get_instance(),
        inputs=utils.gen_inputs,
        stored=utils.load_safetensors,
    )
    sys.path.remove(folder)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))


@pytest.fixture
def written(tmp_path: Path, compiler: NvrtcPool) -> Written:
    """Write the trace set of a session, or of an operator with a choice."""

    def write(session: Path) -> Path:
        winners = winners_of(session, None, None)
        export_package([winners], tmp_path / "out", compiler, "unused", "flashinfer-trace")
        return tmp_path / "out"

    return write


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """Write a session of an operator that has scratch and launches twice."""
    return write_session(tmp_path / "session", write_project(tmp_path / "project"), COMPARISONS)


def operator_session(folder: Path, name: str, **chosen: str) -> Path:
    operators = {**choices(name)[0], **chosen}
    return write_operator_session(folder / "session", name, operators, MOST_BYTES)


def numbers(definition: Any, axes: Mapping[str, int]) -> int:
    """Count the numbers in the arrays of one call."""
    shapes = [*definition.get_input_shapes(axes), *definition.get_output_shapes(axes)]
    return sum(prod(shape) for shape in shapes if shape)


def smallest_workload(traces: Any, name: str) -> tuple[int, Any]:
    """Find a definition's workload of the fewest numbers, and how many those are."""
    counted = [
        (numbers(traces.definitions[name], one.workload.axes), one.workload)
        for one in traces.workloads[name]
    ]
    return min(counted, key=lambda one: one[0])


def first_inputs(bench: Any, root: Path, traces: Any, name: str) -> list[Any]:
    """Make the inputs of a definition's smallest workload as a benchmark does, on a CPU."""
    definition, (_, workload) = traces.definitions[name], smallest_workload(traces, name)
    kinds = {one.type for one in workload.inputs.values()}
    stored = bench.stored(definition, workload, root) if "safetensors" in kinds else {}
    made: list[Any] = bench.inputs(definition, workload, "cpu", stored)
    return made


def test_its_loader_finds_definitions_workloads_and_solutions(
    bench: Any, session: Path, written: Written
) -> None:
    traces = bench.load(written(session))
    assert set(traces.definitions) == {"blend_map_twice_d4096", "blend_map_twice_d8192"}
    sizes = [one.workload.axes["T"] for one in traces.workloads["blend_map_twice_d4096"]]
    assert sizes == [1, 64, 1024, 3], "tuned ones first"
    (solution,) = traces.solutions["blend_map_twice_d4096"]
    paths = [one.path for one in solution.sources]
    assert paths == ["blend.h", *(f"variants/blend_v{n}.cu" for n in range(3)), "binding.cu"]
    assert solution.spec.target_hardware == ["NVIDIA_H200"]
    assert not traces.traces, "what nobody has measured"


def test_an_export_again_changes_nothing(session: Path, written: Written) -> None:
    before = {p: p.read_bytes() for p in written(session).rglob("*") if p.is_file()}
    after = {p: p.read_bytes() for p in written(session).rglob("*") if p.is_file()}
    assert after == before


def check_references(bench: Any, root: Path) -> None:
    """Run each reference on the inputs of a benchmark, against what its definition says."""
    traces = bench.load(root)
    sizes = {name: smallest_workload(traces, name)[0] for name in traces.definitions}
    for name, definition in traces.definitions.items():
        if sizes[name] > max(MOST_NUMBERS, min(sizes.values())):
            continue
        inputs = first_inputs(bench, root, traces, name)
        before = [one.clone() for one in inputs]
        found = bench.builders.build_reference(definition)(*inputs)
        found = found if isinstance(found, tuple) else (found,)
        shapes = definition.get_output_shapes(definition.get_axes_values_from_inputs(inputs))
        assert [list(one.shape) for one in found] == shapes
        assert [one.dtype for one in found] == definition.torch_output_dtypes
        assert all(one.float().isfinite().all() for one in found)
        for one, old in zip(inputs, before, strict=True):
            assert torch.equal(one.view(torch.uint8), old.view(torch.uint8))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in SAYABLE]
)
def test_its_builder_runs_every_reference(
    bench: Any, tmp_path: Path, written: Written, name: str
) -> None:
    check_references(bench, written(operator_session(tmp_path, name)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "chosen"), [(name, chosen) for name in SAYABLE for chosen in choices(name)[1:]]
)
def test_every_other_choice_is_a_definition(
    bench: Any, tmp_path: Path, written: Written, name: str, chosen: Mapping[str, str]
) -> None:
    check_references(bench, written(operator_session(tmp_path, name, **chosen)))


def test_a_reference_computes_the_operator(bench: Any, tmp_path: Path, written: Written) -> None:
    traces = bench.load(written(operator_session(tmp_path, "rmsnorm")))
    run = bench.builders.build_reference(traces.definitions["rmsnorm_gemma_false_h4096"])
    x, w = torch.randn(5, 4096).bfloat16(), torch.randn(4096).bfloat16()
    expected = torch.nn.functional.rms_norm(x.double(), (4096,), w.double(), 1e-6).bfloat16()
    torch.testing.assert_close(run(x, w), expected, rtol=2**-7, atol=0.0)


def test_codes_are_rounded_and_not_cut_off(bench: Any, tmp_path: Path, written: Written) -> None:
    session = operator_session(tmp_path, "per_token_group_quant", QUANT="int8", SCALES="row")
    traces = bench.load(written(session))
    definition = traces.definitions["per_token_group_quant_quant_int8_scales_row_fused_false_k4096"]
    x = torch.randn(2, 4096).bfloat16()
    q, scale = bench.builders.build_reference(definition)(x)
    groups = x.double().view(2, 32, 128) / scale.double().unsqueeze(2)
    assert (q.view(2, 32, 128) - groups).abs().max() <= 0.5 + 1e-4


def test_sizes_that_no_input_tells_are_fixed(bench: Any, tmp_path: Path, written: Written) -> None:
    root = written(operator_session(tmp_path, "per_token_group_quant"))
    definition = bench.load(root).definitions[
        "per_token_group_quant_quant_fp8_scales_column_fused_false_t100_k7168"
    ]
    assert definition.var_axes == []
    assert definition.get_output_shapes() == [[100, 7168], [56, 100]]
    assert definition.axes["scale_1"].description == "ceil_div(T, 4) * 4"


def test_sizes_that_an_input_tells_are_read_from_it(
    bench: Any, tmp_path: Path, written: Written
) -> None:
    root = written(operator_session(tmp_path, "awq_dequantize"))
    name, definition = next(iter(bench.load(root).definitions.items()))
    assert set(definition.var_axes) == {"R", "scales_0"}
    words = int(name.removeprefix("awq_dequantize_dtype_float16_c"))
    shapes = [(300, words), (3, 8 * words), (3, words)]
    assert definition.get_axes_values(shapes) == {"R": 300, "scales_0": 3}


def test_inputs_with_a_range_are_stored(bench: Any, tmp_path: Path, written: Written) -> None:
    root = written(operator_session(tmp_path, "fused_qk_norm_rope"))
    traces, name = bench.load(root), "fused_qk_norm_rope_style_neox_theta_theta_1e6_q32_g8_d128"
    qkv, wq, _, positions = first_inputs(bench, root, traces, name)
    assert qkv.dtype is wq.dtype is torch.bfloat16
    assert wq.float().min() >= 0.75
    assert positions.dtype is torch.int32
    assert positions.min() >= 0
    kinds = {k: v.type for k, v in traces.workloads[name][0].workload.inputs.items()}
    assert kinds["qkv"] == "random"


def test_inputs_of_any_bits_are_left_to_the_benchmark(tmp_path: Path, written: Written) -> None:
    root = written(operator_session(tmp_path, "awq_dequantize"))
    assert not (root / "blob").exists()


def build_all(
    bench: Any, root: Path, toolkit: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Build a solution as a benchmark does, and call it with arrays that it must refuse."""
    for name, value in {**toolkit, "TVM_FFI_CUDA_ARCH_LIST": "9.0a"}.items():
        monkeypatch.setenv(name, value)
    traces = bench.load(root)
    name = min(traces.definitions, key=lambda one: smallest_workload(traces, one)[0])
    definition = traces.definitions[name]
    runnable = bench.builders.build(definition, traces.solutions[name][0])
    inputs = first_inputs(bench, root, traces, name)
    first = next(iter(definition.inputs))
    with pytest.raises(ValueError, match=f"{first} is not on the CUDA device"):
        runnable.call_value_returning(*inputs)


@pytest.fixture
def toolkit(bench: Any, tmp_path: Path, with_nvcc: Mapping[str, str]) -> Mapping[str, str]:
    return bench_packages.toolkit(tmp_path / "lib", with_nvcc)


def test_its_builder_compiles_a_solution(
    bench: Any,
    session: Path,
    written: Written,
    toolkit: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build_all(bench, written(session), toolkit, monkeypatch)


@pytest.mark.parametrize("name", mostly_slow(BUILT, [], BUILT[:1]))
def test_its_builder_compiles_an_operator(
    bench: Any,
    tmp_path: Path,
    written: Written,
    toolkit: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    build_all(bench, written(operator_session(tmp_path, name)), toolkit, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SAYABLE if name not in BUILT])
def test_the_entry_point_of_every_other_operator_compiles(
    bench: Any, tmp_path: Path, written: Written, cuda_headers: Path, name: str
) -> None:
    """The variants beside it are those of a C++ export, which test_operators.py builds."""
    traces = bench.load(written(operator_session(tmp_path, name)))
    solution = next(iter(traces.solutions.values()))[0]
    for one in solution.sources:
        if one.path in ("binding.cu", f"{name}.h"):
            (tmp_path / one.path).write_text(one.content, encoding="utf-8")
    headers = (bench_packages.packages() / "tvm_ffi/include", cuda_headers)
    command = ["g++", "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c++"]
    command += [*(f"-isystem{one}" for one in headers), "binding.cu"]
    kept.build(command, tmp_path)


def refused(written: Written, session: Path, said: str) -> None:
    with pytest.raises(TunerError, match=re.escape(said)):
        written(session)
    assert not (session.parent / "out").exists()


def test_an_operator_with_several_answers_is_refused(tmp_path: Path, written: Written) -> None:
    session = operator_session(tmp_path, "moe_align_block_size")
    refused(written, session, "of moe_align_block_size several answers are right")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("shape: [T, D]}", "shape: [T, D], role: scratch}", "blend has no input, by which"),
        ("name: x, dtype: bfloat16", "name: x, dtype: uint8", "'x' is uint8, which no definition"),
        ("min_bytes:", "options: [--use_fast_math]\nmin_bytes:",
         "is compiled with --use_fast_math, and FlashInfer-Bench takes no options"),
    ],
)  # fmt: skip
def test_what_the_schema_cannot_say_is_refused(
    tmp_path: Path, written: Written, old: str, new: str, said: str
) -> None:
    space = write_project(tmp_path / "project")
    assert old in SPACE
    space.write_text(SPACE.replace(old, new), encoding="utf-8")
    refused(written, write_session(tmp_path / "session", space, COMPARISONS), said)


def test_a_reference_with_modules_of_its_own_is_refused(tmp_path: Path, written: Written) -> None:
    space = write_project(tmp_path / "project")
    own = "def reference(xp, inputs, axes):\n    import common_formulas\n    return {}\n"
    (space.parent / "blend.py").write_text(own, encoding="utf-8")
    session = write_session(tmp_path / "session", space, COMPARISONS)
    refused(written, session, "`reference` imports common_formulas")
