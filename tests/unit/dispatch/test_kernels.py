"""Sources of variants, and the shapes that each is for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dispatch_sample import (
    ENVIRONMENT,
    FAR,
    MANY,
    ONE,
    SOME,
    SPACE,
    TEMPLATE,
    variant,
)

from tuner.dispatch.kernels import VariantRenderer, device_numbers, nearest
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL
from tuner.session.records import CandidateRecord


def kernels(template=TEMPLATE, space=SPACE):
    candidate = CandidateRecord(INITIAL, template, space)
    return VariantRenderer([candidate], {"MAP": "twice"}, device_numbers(ENVIRONMENT))


def reach_of(made, one):
    kernel = made.of(MANY, one)
    return made.applicability(kernel, MANY, (ONE, SOME, MANY, FAR))


def names(made, **axes):
    return made.names(Workload.of(axes))


def test_a_source_without_an_axis_in_it_holds_for_all_shapes_that_the_constraints_allow():
    made = kernels()
    reach = reach_of(made, variant(128))
    assert reach.written == ()
    assert reach.holds(names(made, T=77, D=256))
    assert not reach.holds(names(made, T=77, D=200))


def test_a_source_with_an_axis_in_it_holds_for_that_size_alone():
    made = kernels()
    reach = reach_of(made, variant(128, specialize=True))
    assert (reach.written, reach.shapes) == (("D",), ((4096,),))
    assert reach.holds(names(made, T=77, D=4096))
    assert not reach.holds(names(made, T=77, D=8192))


def test_known_sizes_that_give_the_same_source_are_told():
    coarse = TEMPLATE.replace("@{ D if specialize else 0 }@", "@{ D % 4096 }@")
    reach = reach_of(kernels(coarse), variant(128))
    assert reach.shapes == ((4096,), (8192,))


def test_an_axis_used_only_in_a_branch_not_taken_is_not_in_the_source():
    lazy = TEMPLATE.replace("@{ D if specialize else 0 }@", "@{ 0 if not specialize else D + T }@")
    assert reach_of(kernels(lazy), variant(128)).written == ()
    assert reach_of(kernels(lazy), variant(128, specialize=True)).written == ("T", "D")


def test_a_launch_that_the_device_would_refuse_is_out_of_reach():
    made = kernels()
    wide = variant(256, wide=True)
    assert reach_of(made, wide).holds(names(made, T=8, D=4096))
    # 256 * 400 bytes and what the code takes itself are over 227 KiB.
    large, other = (
        replace(reach_of(made, wide), static_bytes=each) for each in ((0, 140_000), (140_000, 0))
    )
    assert not large.holds(names(made, T=8, D=4096))
    assert other.holds(names(made, T=8, D=4096)), "each launch has its own shared memory"


def test_a_grid_that_clusters_do_not_divide_is_out_of_reach():
    made = kernels()
    # `wide` has clusters of two blocks.
    assert reach_of(made, variant(128, wide=True)).holds(names(made, T=64, D=4096))
    assert not reach_of(made, variant(128, wide=True)).holds(names(made, T=65, D=4096))
    assert reach_of(made, variant(128)).holds(names(made, T=65, D=4096))


@pytest.mark.parametrize(("T", "holds"), [(65535, True), (2**31 - 1, True)])
def test_a_grid_has_limits(T, holds):  # noqa: N803
    made = kernels()
    assert reach_of(made, variant(64)).holds(names(made, T=T, D=4096)) is holds
    tall = kernels(space=SPACE.replace('grid: [T, "ceil_div(D, 1024)"]', "grid: [1, T]"))
    assert reach_of(tall, variant(64)).holds(names(tall, T=T, D=4096)) is (T < 65536)


@pytest.mark.parametrize(("T", "holds"), [(64, True), (65, False)])
def test_a_block_has_limits_beside_that_of_its_threads(T, holds):  # noqa: N803
    deep = kernels(space=SPACE.replace('block: ["block // 2", 2]', 'block: [1, "block // 64", T]'))
    assert reach_of(deep, variant(64)).holds(names(deep, T=T, D=4096)) is holds


def test_a_config_that_breaks_a_constraint_has_no_kernel():
    made = kernels()
    assert made.of(Workload.of({"T": 1, "D": 100}), variant(128)) is None


def test_a_template_that_does_not_render_has_no_kernel():
    made = kernels(TEMPLATE.replace("@{ wide }@", "@{ 1 // (D - 8192) }@"))
    assert made.of(FAR, variant(128)) is None
    assert made.of(MANY, variant(128)) is not None


def test_the_nearest_in_logarithms_serves_and_the_first_of_equally_near_ones():
    points = [(ONE, "one"), (SOME, "some"), (MANY, "many")]

    def at(size, holds=lambda served: True):
        return nearest(points, {"T": size, "D": 4096}, holds)[1]

    assert [at(1), at(7), at(8), at(9), at(256), at(257), at(10**6)] == [
        *("one", "one", "one", "some", "some", "many", "many"),
    ]
    assert at(1, lambda served: served != "one") == "some"
    assert nearest(points, {"T": 1, "D": 1}, lambda served: False) is None


NAMED = (
    SPACE.replace(
        "constraints:\n", "derived: {width: \"block if MAP == 'twice' else D\"}\nconstraints:\n"
    )
    .replace("  - D % block == 0", "  - D % width == 0")
    .replace("block: [block]", "block: [width]")
)


@pytest.mark.parametrize(("D", "holds"), [(256, True), (200, False)])
def test_derived_names_are_written_out_where_a_variant_is_sent(D, holds):  # noqa: N803
    reach, axes = reach_of(kernels(space=NAMED), variant(128)), {"T": 77, "D": D}
    assert reach.holds(names(kernels(), **axes)) is holds
    assert [size.evaluate(axes) for launch in reach.launches for size in launch.block] == [
        *(128, 64, 2),
    ]


def test_a_shape_where_a_variant_is_thought_slow_is_served_all_the_same():
    made = kernels(space=f"{SPACE}prune: [D < 100]\n")
    assert made.of(MANY, variant(128)) is not None
    assert reach_of(made, variant(128)).holds(names(made, T=77, D=256))
