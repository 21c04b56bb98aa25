"""A measured tolerance: sums in any order pass, lower precision than the baseline's fails."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tuner.device.encoding import encode
from tuner.device.inputs import Prepared
from tuner.device.verify.accuracy import Leeway, draws_of
from tuner.model.kernel import KernelSpec, Tolerance, Workload

Array = NDArray[np.float64]
Single = NDArray[np.float32]
WORKLOAD = Workload.of({"T": 32})
DEPTH = 2048


def keep_bits(values: Single, bits: int) -> Single:
    """Round float32 to so many bits of mantissa: 10 are TF32 and half precision, 7 bfloat16."""
    drop = np.uint32(23 - bits)
    stored = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (stored + (np.uint32(1) << (drop - 1))) >> drop << drop
    return rounded.view(np.float32)


def add_up(terms: Single, bits: int = 23) -> Single:
    """Add along the last axis one by one, each sum kept to so many bits."""
    total = np.zeros(terms.shape[:-1], np.float32)
    for k in range(terms.shape[-1]):
        total = keep_bits(total + terms[..., k], bits) if bits < 23 else total + terms[..., k]
    return total


def product_terms(a: Single, b: Single) -> Single:
    return a[:, None, :] * b.T[None, :, :]


def normalize(x: Array, w: Array) -> Array:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * w


def normalize_in_singles(x: Single, w: Single, sums: Callable[[Single], Single]) -> Single:
    count = np.float32(x.shape[-1])
    mean = (sums(x) / count)[:, None]
    spread = (sums((x - mean) ** 2) / count)[:, None]
    return (x - mean) / np.sqrt(spread + np.float32(1e-5)) * w


class Output:
    """One output `y`, whose reference is a function of float32 inputs."""

    def __init__(
        self, spec: KernelSpec, reference: Callable[..., Array], inputs: tuple[Single, ...]
    ) -> None:
        self.dtype, self.leeway = spec.argument("y").dtype, Leeway(spec)
        self.reference = reference
        self.draw(*inputs)

    def draw(self, *inputs: Single) -> None:
        """Take other inputs."""
        wide = {f"x{k}": one.astype(np.float64) for k, one in enumerate(inputs)}

        def compute(values: Mapping[str, Array]) -> dict[str, Array]:
            return {"y": np.asarray(self.reference(*values.values()))}

        self.prepared = Prepared(WORKLOAD, "normal", 7, {}, compute(wide))
        self.leeway.find_scales(np, self.prepared, wide, compute)

    def roundings(self, found: Single) -> float:
        """Give the largest mean over neighbours."""
        raw = encode(np, np.asarray(found, np.float64), self.dtype)
        asked = (np, raw, self.prepared, "y", self.dtype)
        return self.leeway.judge(*asked, baseline=True)[1].block

    def error(self, found: Single | Array, *, baseline: bool = False) -> float:
        """Give the error in units of what is allowed."""
        raw = encode(np, np.asarray(found, np.float64), self.dtype)
        asked = (np, raw, self.prepared, "y", self.dtype)
        return self.leeway.judge(*asked, baseline=baseline)[0].error


Outputs = Callable[..., Output]
MakeSpec = Callable[..., KernelSpec]


@pytest.fixture
def output_of(make_spec: MakeSpec) -> Outputs:
    def make(reference: Callable[..., Array], *inputs: Single, dtype: str = "float32") -> Output:
        read = ((f"x{k}", "float32", ("T",), "input") for k, _ in enumerate(inputs))
        tolerances = {"y": Tolerance(measured=True)}
        spec = make_spec(("y", dtype, ("T",), "output"), *read, tolerances=tolerances)
        return Output(spec, reference, inputs)

    return make


@pytest.fixture(scope="module")
def factors() -> tuple[Single, Single]:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape, np.float32) for shape in ((32, DEPTH), (DEPTH, 24)))
    return a, b


@pytest.fixture
def product(output_of: Outputs, factors: tuple[Single, Single]) -> Output:
    made = output_of(np.matmul, *factors)
    assert made.error(add_up(product_terms(*factors)), baseline=True) < 0.01
    return made


def test_a_product_may_be_summed_in_any_order(
    product: Output, factors: tuple[Single, Single]
) -> None:
    terms = product_terms(*factors)
    halves = [add_up(part) for part in np.split(terms, 8, axis=-1)]
    orders = (add_up(terms[..., ::-1]), terms.sum(-1, dtype=np.float32), sum(halves))
    assert all(product.error(found) < 0.5 for found in orders)


@pytest.mark.parametrize("signed", [True, False])
def test_a_thread_alone_is_off_by_the_root_of_the_number_of_terms(
    output_of: Outputs, signed: bool
) -> None:
    for count in (256, 4096):
        terms = np.random.default_rng(9).standard_normal((256, count), np.float32)
        terms = terms if signed else np.abs(terms)
        made = output_of(lambda terms: terms.sum(-1), terms)
        root = np.sqrt(count)
        assert 0.05 * root < made.roundings(add_up(terms)) < 0.4 * root


def test_one_kind_of_input_on_which_the_baseline_is_far_off_excuses_no_other(
    product: Output, factors: tuple[Single, Single]
) -> None:
    a, b = factors
    rounded = keep_bits(a, 10) @ b
    normal = product.prepared
    product.prepared = replace(normal, kind="extreme")
    assert product.error(rounded, baseline=True) < 1
    assert product.error(rounded) < 1
    product.prepared = normal
    assert product.error(rounded) > 20


@pytest.mark.parametrize("bits", [10, 7], ids=["TF32", "bfloat16"])
def test_factors_and_sums_of_lower_precision_are_refused(
    product: Output, factors: tuple[Single, Single], bits: int
) -> None:
    a, b = (keep_bits(one, bits) for one in factors)
    assert product.error(a @ b) > 20
    assert product.error(add_up(product_terms(*factors), bits)) > 20


def test_what_is_left_out_is_seen(product: Output, factors: tuple[Single, Single]) -> None:
    a, b = factors
    right = a @ b
    assert product.error(right) < 1
    assert product.error(a[:, :-1] @ b[:-1]) > 100
    wrong = right.copy()
    wrong[3, 5] *= np.float32(1.01)
    assert product.error(wrong) > 1
    wrong[3, 5] = np.nan
    assert product.error(wrong) == np.inf


def test_sums_of_lower_precision_are_seen_beneath_outputs_of_16_bits(
    output_of: Outputs,
    factors: tuple[Single, Single],
) -> None:
    made = output_of(np.matmul, *factors, dtype="bfloat16")
    terms = product_terms(*factors)
    right = add_up(terms)
    assert made.error(right, baseline=True) < 1
    assert made.error(keep_bits(right, 7) * np.float32(1 + 2**-9)) < 1
    assert made.error(add_up(terms, 10)) > 20
    assert made.error(add_up(terms, 7)) > 20


@pytest.mark.parametrize("count", [768, 8192])
def test_a_norm_may_sum_its_rows_by_one_thread_or_by_a_tree(output_of: Outputs, count: int) -> None:
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((16, count), np.float32), rng.standard_normal(count, np.float32)
    made = output_of(normalize, x, w)
    tree = normalize_in_singles(x, w, lambda terms: terms.sum(-1, dtype=np.float32))
    assert made.error(tree, baseline=True) < 1
    assert made.error(normalize_in_singles(x, w, add_up)) < 1
    assert made.error(normalize_in_singles(keep_bits(x, 10), w, add_up)) > 1
    assert made.error(normalize_in_singles(x, w, lambda terms: add_up(terms, 10))) > 1


def test_a_copy_is_exact(output_of: Outputs) -> None:
    x = np.random.default_rng(5).standard_normal(1000, np.float32)
    made = output_of(lambda x: x[::-1], x)
    assert made.error(x[::-1], baseline=True) == 0
    assert made.error(x[::-1]) == 0
    assert made.error(np.nextafter(x, np.float32(9))[::-1]) == np.inf


def test_an_output_that_is_wrong_is_looked_at_in_pieces(output_of: Outputs) -> None:
    """Of 6 GB each array of float64 is a tenth of a GPU."""
    x = np.random.default_rng(5).standard_normal(1 << 19, np.float32)
    made = output_of(lambda x: 2 * x, x)
    wrong = encode(np, 2 * x.astype(np.float64), "float32")
    wrong[1 << 18] = 0
    tracemalloc.start()
    try:
        verdict, _ = made.leeway.judge(np, wrong, made.prepared, "y", "float32", baseline=False)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert verdict.worst is not None
    assert verdict.worst[:2] == (1 << 18, 0.0)
    assert peak < 8 * x.size


def test_an_output_that_is_the_input_itself_is_a_copy(output_of: Outputs) -> None:
    x = np.random.default_rng(5).standard_normal(1000, np.float32)
    made = output_of(lambda x: x, x)
    assert made.error(x, baseline=True) == 0
    assert made.prepared.reference is not None
    assert np.array_equal(made.prepared.reference["y"], x)
    assert made.prepared.scales["y"].max() < 1e-5


def test_inputs_in_another_order_of_memory_are_moved_too(make_spec: MakeSpec) -> None:
    found = []
    for order in ("C", "F"):
        spec = make_spec(
            *(("y", "float32", ("T", 40), "output"), ("x", "float32", ("T", 40), "input")),
            tolerances={"y": Tolerance(measured=True)},
        )
        x = np.asarray(np.random.default_rng(5).standard_normal((25, 40)) + 3.0, order=order)

        def compute(values: Mapping[str, Array]) -> dict[str, Array]:
            return {"y": np.ascontiguousarray(np.exp(9.0 * values["x"]))}

        prepared = Prepared(WORKLOAD, "normal", 7, {}, compute({"x": x}))
        Leeway(spec).find_scales(np, prepared, {"x": x}, compute)
        assert prepared.reference is not None
        found.append(np.median(prepared.scales["y"] / np.abs(prepared.reference["y"])) * 2**24)
    assert found[0] > 9
    assert found[0] == pytest.approx(found[1], rel=0.2)


def test_two_outputs_in_one_array_have_their_own_scales(make_spec: MakeSpec) -> None:
    names = "y", "z"
    outputs = ((name, "float32", ("T",), "output") for name in names)
    measured = dict.fromkeys(names, Tolerance(measured=True))
    spec = make_spec(*outputs, ("x", "float32", ("T",), "input"), tolerances=measured)
    x, leeway = np.random.default_rng(5).standard_normal(1000), Leeway(spec)

    def compute(values: Mapping[str, Array]) -> dict[str, Array]:
        return dict.fromkeys(names, 2 * values["x"])

    prepared = Prepared(WORKLOAD, "normal", 7, {}, compute({"x": x}))
    leeway.find_scales(np, prepared, {"x": x}, compute)
    for name in names:
        assert prepared.scales[name].max() < 1e-5, name


def test_what_is_exact_on_one_draw_alone_is_no_copy(output_of: Outputs) -> None:
    # of numbers below 0 it is their size, for which most have to be rounded on the way
    few, more = np.float32([-1.5, -2.5, -0.5]), -np.random.default_rng(6).random(64, np.float32)
    for draws in ((few, more), (more, few)):
        sizes = output_of(lambda x: np.abs(x - 0.25) - 0.25, draws[0])
        for x in draws:
            sizes.draw(x)
            assert sizes.error(np.abs(x - np.float32(0.25)) - np.float32(0.25), baseline=True) < 1
        sizes.draw(few)
        assert sizes.error(np.nextafter(-few, np.float32(9))) < 1


def test_what_the_baseline_rounds_others_may_round(output_of: Outputs) -> None:
    x = np.random.default_rng(5).standard_normal(4096, np.float32)
    exact = output_of(np.exp, x)
    assert exact.error(np.exp(x), baseline=True) < 1
    coarse = np.exp(x) * np.float32(1 + 2**-13)
    assert exact.error(coarse) > 1
    fast = output_of(np.exp, x)
    assert fast.error(coarse, baseline=True) < 1
    assert fast.error(np.exp(x) * np.float32(1 - 2**-13)) < 1


@pytest.mark.parametrize(
    "wrong",
    [lambda y: 1.01 * y, lambda y: y + 1, lambda y: y[:, ::-1], np.zeros_like, lambda y: y + 0.1],
    ids=["factor", "one more", "turned around", "zeros", "a tenth more"],
)
def test_a_baseline_that_computes_something_else_is_wrong(
    output_of: Outputs, factors: tuple[Single, Single], wrong: Callable[[Array], Array]
) -> None:
    made = output_of(np.matmul, *factors)
    a, b = factors
    assert made.error(wrong(np.asarray(a @ b, np.float64)), baseline=True) > 1


def test_without_a_baseline_what_one_may_be_off_by_is_allowed(
    output_of: Outputs,
    factors: tuple[Single, Single],
) -> None:
    made, (a, b) = output_of(np.matmul, *factors), factors
    before = made.error(add_up(product_terms(a, b)))
    made.error(a @ b, baseline=True)
    assert made.error(add_up(product_terms(a, b))) > before > 0


@pytest.mark.parametrize("seed", range(4))
def test_one_factor_rounded_to_16_bits_costs_nothing(output_of: Outputs, seed: int) -> None:
    x = keep_bits(np.random.default_rng(seed).standard_normal((2, 4096), np.float32), 7)
    made = output_of(lambda h, y: y / (1 + h * h), *x, dtype="bfloat16")
    factor = keep_bits(1 / (1 + x[0] * x[0]), 7)
    assert made.roundings(factor * x[1]) == 0
    # a second one costs something, as far as the outputs are not rounded alike
    assert made.roundings(keep_bits(factor * np.float32(0.7), 7) * x[1] / np.float32(0.7)) > 0


@pytest.mark.parametrize(("elements", "draws"), [(1, 16), (192, 16), (4096, 4), (2**20, 1)])
def test_a_baseline_is_measured_on_several_draws_of_small_outputs(
    make_spec: Callable[..., KernelSpec], elements: int, draws: int
) -> None:
    arrays = ("y", "bfloat16", ("T",), "output"), ("x", "bfloat16", ("T",), "input")
    spec = make_spec(*arrays, tolerances={"y": Tolerance(measured=True)})
    assert draws_of(spec, Workload.of({"T": elements})) == draws
    assert draws_of(make_spec(*arrays), Workload.of({"T": elements})) == 1


def test_large_inputs_of_a_small_output_are_drawn_once(
    make_spec: Callable[..., KernelSpec],
) -> None:
    arrays = ("y", "float32", ("1",), "output"), ("x", "float32", ("T",), "input")
    spec = make_spec(*arrays, tolerances={"y": Tolerance(measured=True)})
    assert draws_of(spec, Workload.of({"T": 2**24})) == 1


def test_what_a_baseline_may_be_off_by_lets_no_zeros_pass(output_of: Outputs) -> None:
    x = keep_bits(np.random.default_rng(8).standard_normal((256, 64), np.float32), 7)
    middles = output_of(lambda rows: (rows.min(-1) + rows.max(-1)) / 2, x, dtype="bfloat16")
    right = (x.min(-1) + x.max(-1)) / 2
    assert middles.error(right, baseline=True) < 0.01
    assert middles.error(np.zeros_like(right), baseline=True) > 1
    # nothing is left of these but rounding
    lost = output_of(lambda y: np.sin(1e9 * y), x[0], dtype="bfloat16")
    assert lost.prepared.limits == {"y": 0.0}


def test_no_zeros_pass_where_a_few_elements_are_all_that_roundings_decide(
    output_of: Outputs,
) -> None:
    # Their scales are most of their block's: the others are judged by them.
    x = np.random.default_rng(3).standard_normal(64, np.float32)
    lost = output_of(lambda y: np.where(np.arange(64) < 4, np.sin(1e9 * y), y), x)
    assert lost.error(np.zeros_like(x), baseline=True) > 1
    assert lost.prepared.limits == {"y": 0.0}


def test_products_that_end_in_zero_are_judged_where_they_are_numbers(output_of: Outputs) -> None:
    x = np.random.default_rng(9).random((8, 1024), np.float32)
    products = output_of(lambda rows: np.cumprod(rows, -1), x)
    right = np.cumprod(x, -1)
    assert np.median(np.abs(right)) == 0.0
    assert products.error(right, baseline=True) < 0.01
    assert products.error(np.zeros_like(right)) > 1
    assert products.error(np.cumprod(x.astype(np.float16), -1)) > 1
