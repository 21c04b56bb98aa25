"""Scalars of the operator: who passes them, and for which variants only the default is right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from dispatch_sample import COMPARISONS, ENVIRONMENT, write_project, write_session
from operator_sessions import SPACES

from tuner.dispatch.kernels import VariantRenderer, device_numbers
from tuner.extensions.export.dispatch import export_dispatch
from tuner.extensions.export.variants import caller_scalars, fixed_scalars
from tuner.model.config import Config
from tuner.model.errors import InputError
from tuner.model.trial import INITIAL, Variant
from tuner.session.records import CandidateRecord
from tuner.space.load import load_definition
from tuner.space.template import Template


def declared(kernel: str, **operators: str) -> list[tuple[str, str, str]]:
    spec = load_definition(SPACES / f"{kernel}.yaml", operators).spec
    return [(one.kind, one.name, one.default) for one in caller_scalars(spec)]


def test_numbers_are_the_callers_and_sizes_are_not():
    assert declared("rmsnorm") == [("float", "eps", "1e-06f")]
    assert declared("moe_sum_reduce") == [("float", "scale", "2.5f")]
    assert declared("silu_and_mul") == []


def test_the_default_follows_the_operators_choice():
    eps = ("float", "eps", "1e-06f")
    for choice, default in (("theta_1e6", "1e+06f"), ("theta_5e5", "500000.0f")):
        found = declared("fused_qk_norm_rope", THETA=choice)
        assert found == [("float", "theta", default), eps]


def with_scalar(folder: Path, dtype: str, value: str) -> Path:
    space = write_project(folder)
    stated = f"dtype: {dtype}, value: {value}"
    space.write_text(space.read_text().replace("dtype: float32, value: 1.0e-6", stated))
    return space


@pytest.mark.parametrize(
    ("dtype", "value", "literal"),
    [
        ("bool", "true", "true"),
        ("int32", "-7", "-7"),
        ("int64", "1 << 40", "1099511627776LL"),
        ("uint64", "7", "7ULL"),
        ("float32", "0.1", "0.1f"),
        ("float64", "0.1", "0.1"),
        ("float32", "3", "3.0f"),
    ],
)
def test_a_default_has_its_bits_in_cpp(tmp_path, dtype, value, literal):
    found = caller_scalars(load_definition(with_scalar(tmp_path, dtype, value)).spec)
    assert [one.default for one in found] == [literal]


@pytest.mark.parametrize(
    ("dtype", "value", "told"),
    [
        ("float16", "1.0", "float16, which cannot be passed by value"),
        ("int8", "128", "128, which int8 cannot hold"),
        ("float32", "1.0e39", "1e+39, which float32 cannot hold"),
        ("int32", "\"'two'\"", "'two', which int32 cannot hold"),
    ],
)
def test_a_number_without_an_equal_is_one_error_with_its_line(tmp_path, dtype, value, told):
    spec = load_definition(with_scalar(tmp_path, dtype, value)).spec
    with pytest.raises(InputError) as caught:
        caller_scalars(spec)
    assert f"the scalar 'eps' is {told}" in str(caught.value)
    assert caught.value.path == spec.path
    assert caught.value.line == 14


def test_an_optional_pointer_stays_null(tmp_path):
    space = with_scalar(tmp_path, "int64", "0")
    source = space.with_name("blend.cu")
    source.write_text(source.read_text().replace("float eps", "const float* eps"))
    assert caller_scalars(load_definition(space).spec) == ()


KERNEL = "__global__ void run(float* out, float eps) {{ {} }}"


@pytest.mark.parametrize(
    ("body", "fixed"),
    [
        ("out[0] = eps;", False),
        ("out[0] = 1e-6f;", True),
        ("out[0] = 1e-6f;  // eps", True),
        ("out[0] = steps;", True),
    ],
)
def test_a_parameter_that_no_kernel_names_is_fixed(body, fixed):
    (_, eps) = caller_scalars(load_definition(SPACES / "fused_qk_norm_rope.yaml").spec)
    found = fixed_scalars([replace(eps, position=1)], KERNEL.format(body), [("run", ())], ())
    assert bool(found) is fixed


def test_parameters_that_cannot_be_read_count_as_fixed():
    (eps,) = caller_scalars(load_definition(SPACES / "rmsnorm.yaml").spec)
    source = "#define ALL float* out, float eps\n__global__ void run(ALL) { out[0] = eps; }"
    assert fixed_scalars([eps], source, [("run", ())], ()) == (eps,)


@pytest.mark.parametrize(("angles", "names"), [("table", ["theta"]), ("computed", [])])
def test_a_table_in_the_code_is_for_one_base_only(angles, names):
    definition = load_definition(SPACES / "fused_qk_norm_rope.yaml")
    spec, space = definition.spec, definition.space
    template = Template.load(spec.template, spec.include_dirs)
    text = CandidateRecord(INITIAL, template.text, spec.path.read_text())
    chosen = {one.name: one.values[0] for one in spec.operators}
    renderer = VariantRenderer([text], chosen, device_numbers(ENVIRONMENT))
    workload = spec.tuned[0]
    kernel = renderer.of(workload, Variant(INITIAL, Config.of({**space.default, "angles": angles})))
    reach = renderer.applicability(kernel, workload, [])
    launched = [(one.kernel, ()) for one in reach.launches]
    fixed = fixed_scalars(caller_scalars(spec), kernel.source, launched, reach.choices)
    assert [one.name for one in fixed] == names


def exported(folder: Path, edited: str) -> str:
    """Export the operator with a constant in the place of `eps` in one of its files."""
    space = write_project(folder / "project")
    path = space.with_name(edited)
    path.write_text(path.read_text().replace(", eps}", ", 1e-6f}"))
    session = write_session(folder / "session", space, COMPARISONS)
    export_dispatch(session, folder / "out", None, None)
    return (folder / "out" / "blend.h").read_text()


def test_a_variant_that_holds_for_the_default_only_is_passed_over(tmp_path):
    header = exported(tmp_path, "blend.cu.j2")
    assert header.count("if (!(eps == 1e-06f)) return false;") == 2
    assert "case 0:\n      return true;" in header


def test_a_baseline_that_holds_for_the_default_only_refuses_others(tmp_path):
    header = exported(tmp_path, "blend.cu")
    assert "if (!((eps == 1e-06f))) return cudaErrorInvalidValue;\n      return blend_v0(" in header
