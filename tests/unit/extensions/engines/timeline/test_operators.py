"""The table knows the kernels and operators of the engines, and agrees with the search spaces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from timelines import ATTENTION, GEMM, NORM, SILU, eager_layer, kernel, replayed_layer

from tuner.extensions.engines.timeline.operators import (
    UNKNOWN,
    key_of,
    label_launches,
    rules,
    shapes_of,
)
from tuner.extensions.engines.timeline.read import read
from tuner.extensions.engines.timeline.trace import Call, Trace, TracedLaunch
from tuner.model.kernel import Workload
from tuner.space.load import load_definition

ROOT = Path(__file__).parents[5]
TRITON = ("fused_moe", "w8a8_block_fp8")
KERNELS = sorted([*TRITON, *(path.stem for path in (ROOT / "kernels" / "sglang").glob("*.cu"))])
FLASHINFER = (
    "void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &(float gelu<float>())>"
)

# As profilers write them, and what they are.
NAMED = {
    "fused_moe_kernel": "fused_moe",
    "_w8a8_block_fp8_matmul": "w8a8_block_fp8",
    "_w8a8_triton_block_scaled_mm": "w8a8_block_fp8",
    NORM: "fused_add_rmsnorm",
    "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(...)": "fused_add_rmsnorm",
    "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(...)": "fused_add_rmsnorm",
    "void fused_add_rmsnorm_reg_kernel<__nv_bfloat16>(...)": "fused_add_rmsnorm",
    "kernel_cutlass_kernel_flashinfernormkernelsrmsnormRMSNormKernel_object_at__0": "rmsnorm",
    "void (anonymous namespace)::rmsnorm_warp<128l>(...)": "rmsnorm",
    SILU: "silu_and_mul",
    "void <unnamed>::act_and_mul_kernel<float, (<unnamed>::ActivationKind)0>": "silu_and_mul",
    "act_and_mul_kernel": "silu_and_mul",
    "triton_poi_fused_mul_silu_1": "silu_and_mul",
    "void tensorrt_llm::kernels::fusedQKNormRopeKernel<128, false>(...)": "fused_qk_norm_rope",
    "void merge_attn_states_kernel<__nv_bfloat16, 128u>(...)": "merge_state",
    "void moe_align_block_size_kernel<int>(...)": "moe_align_block_size",
    "void count_and_sort_expert_tokens_kernel<int>(...)": "moe_align_block_size",
    "void moe_sum_reduce_warp_per_token_vec_kernel<8>(...)": "moe_sum_reduce",
    "_moe_sum_reduce_kernel": "moe_sum_reduce",
    "void vllm::moe::topkGatingSoftmax<4, 128, 4, 16>(...)": "topk_softmax",
    "_router_triton_kernel": "topk_softmax",
    "void per_token_quant_fp8_small_batch_kernel<__nv_bfloat16>(...)": "per_token_quant_fp8",
    "void vllm::dynamic_per_token_scaled_fp8_quant_kernel<float>(...)": "per_token_quant_fp8",
    "void per_token_group_quant_flat_kernel<Trait<1>>(...)": "per_token_group_quant",
    "void dequantize_weights<__nv_bfloat16>(...)": "awq_dequantize",
    "fused_add_rmsnorm_v3_code": "fused_add_rmsnorm",
    "decode_attention_v1_code": "decode_attention",
    "gate_up_silu_v1_code": "gate_up_silu",
    "linear_add_rmsnorm_v1_code": "linear_add_rmsnorm",
    "gemm_invariant_v2_code": "gemm_invariant",
    "gemm_invariant_fp8_v2_code": "gemm_invariant_fp8",
    "matmul_kernel_persistent": "gemm_invariant",
    "void (anonymous namespace)::hopper_bf16_gemv_kernel<4096, 1, 2, 8>(...)": "gemm_small_m",
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<2112u, 7168u, 1u>(...)": "gemm_fp8",
}
KINDS = {
    GEMM: "GEMM",
    "void splitKreduce_kernel<32, 16, int>(...)": "GEMM",
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<...>>(...)": "GEMM",
    ATTENTION: "attention",
    "void flash::prepare_varlen_num_blocks_kernel<1, true>(...)": "attention",
    "grouped_gemm_kernel": "GEMM of experts",
    "void flashinfer::norm::FusedAddRMSNormQuantKernel<8u>(...)": "norm with quantization",
    "void vllm::rms_norm_static_fp8_quant_kernel<c10::BFloat16>(...)": "norm with quantization",
    "void (anonymous namespace)::fused_qknorm_warp<128l, true>(...)": "norm of queries and keys",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...)": "communication",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel<1>(...)": "communication",
    "Memcpy DtoD (Device -> Device)": "copies",
    "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0": "fused by torch.compile",
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>": "PyTorch's own",
    "my_kernel": UNKNOWN,
}


def launch(name: str, call: Call | None = None) -> TracedLaunch:
    return TracedLaunch(name, 0.0, 1.0, (1, 1, 1), (1, 1, 1), call=call)


def axes_of(call: Call) -> dict[str, int] | None:
    workload = rules().label(launch("kernel", call)).workload
    return workload and workload.values


@pytest.mark.parametrize("name", NAMED)
def test_a_kernel_is_known_by_its_name(name: str) -> None:
    assert rules().label(launch(name)).operator == NAMED[name]


@pytest.mark.parametrize("name", KINDS)
def test_what_cannot_be_tuned_is_called_what_it_is(name: str) -> None:
    label = rules().label(launch(name))
    assert (label.operator, label.kind) == ("", KINDS[name])


def test_every_operator_can_be_found_by_name_and_by_call() -> None:
    table = rules()
    # Engines have two launches for what these do, or a call whose sizes say nothing of the lengths.
    unnamed = {"decode_attention", "gate_up_silu", "gemm_invariant", "linear_add_rmsnorm"}
    unnamed |= {"gemm_invariant_fp8", "w8a8_block_fp8"}
    assert sorted(unnamed | {one.operator for one in table.calls}) == KERNELS
    assert sorted(set(NAMED.values())) == KERNELS


@pytest.mark.parametrize("operator", KERNELS)
def test_every_rule_gives_the_axes_and_choices_of_the_search_space(operator: str) -> None:
    space = load_definition(ROOT / "search_spaces" / "sglang" / f"{operator}.yaml")
    known = {one.name: one.values for one in space.spec.operators}
    for rule in rules().calls:
        if rule.operator == operator:
            assert tuple(rule.axes) == space.spec.axes
            assert rule.choices.keys() <= known.keys()
    for _, model in rules().kernels:
        if model.operator == operator:
            space.chosen(model.choices)


@pytest.mark.parametrize(
    ("call", "axes"),
    [
        (Call("_C::fused_add_rms_norm", ((3, 8), (3, 8), (8,))), {"T": 3, "H": 8}),
        (Call("sgl_kernel::rmsnorm", ((2, 4, 8), (2, 4, 8), (8,))), {"T": 8, "H": 8}),
        (Call("sglang::_run_activation_inplace", ((), (3, 16), (3, 8))), {"T": 3, "D": 8}),
        (
            Call(
                "_moe_C::topk_softmax",
                ((3, 8), (3, 8), (3, 8), (3, 128), ()),
                ("",) * 4 + ("True",),
            ),
            {"T": 3, "E": 128, "k": 8},
        ),
        (Call("sgl_kernel::moe_align_block_size", ((3, 8), (), ()), ("", "129", "64")),
         {"T": 3, "E": 128, "k": 8, "B": 64}),
        (
            Call(
                "_C::fused_qk_norm_rope",
                ((3, 6144),),
                ("", "32", "8", "8", "128") + ("",) * 4 + ("True",),
            ),
            {"T": 3, "Q": 32, "G": 8, "D": 128},
        ),
        (Call("aten::mm", ((3, 4096), (4096, 6144)), types=("c10::BFloat16",) * 2),
         {"M": 3, "N": 6144, "K": 4096}),
        (
            Call(
                "sglang::deep_gemm_fp8_fp8_bf16_nt",
                ((3, 7168), (3, 56), (2112, 7168), (17, 56), (3, 2112)),
            ),
            {"M": 3, "N": 2112, "K": 7168},
        ),
        (Call("triton_poi_fused_mul_silu_0", ((3, 16), (3, 8), ())), {"T": 3, "D": 8}),
        (Call("sgl_kernel::moe_sum_reduce", ((3, 8, 64), (3, 64))), {"T": 3, "K": 8, "H": 64}),
        (Call("sgl_kernel::awq_dequantize", ((64, 16),), types=("int", "c10::Half")),
         {"R": 64, "C": 16}),
    ],
)  # fmt: skip
def test_the_axes_follow_from_the_shapes(call: Call, axes: dict[str, int]) -> None:
    assert axes_of(call) == axes


def test_a_call_without_shapes_is_known_but_for_its_workload() -> None:
    label = rules().label(launch("kernel", Call("_C::silu_and_mul")))
    assert (label.operator, label.workload) == ("silu_and_mul", None)


def test_a_call_of_an_empty_batch_has_no_workload() -> None:
    assert axes_of(Call("_C::silu_and_mul", ((0, 8), (0, 16)))) is None


def test_groups_of_another_size_are_not_the_operator() -> None:
    shapes = ((3, 512), (3, 512), (3, 8), ())
    call = Call("sglang::per_token_group_quant", shapes, ("", "", "", "64"))
    assert rules().label(launch("per_token_group_quant_flat_kernel", call)).operator == ""


@pytest.mark.parametrize(
    ("shapes", "axes"),
    [
        (((64, 8, 2048), (64, 2048), ()), {"T": 64, "K": 8, "H": 2048}),
        (((64, 2048), (64,), ()), None),
    ],
)
def test_a_kernel_of_torch_compile_is_what_its_arguments_say(
    shapes: tuple[tuple[int, ...], ...], axes: dict[str, int] | None
) -> None:
    name = "triton_per_fused_mul_sum_0"
    label = rules().label(launch(name, Call(name, shapes)))
    assert (label.workload and label.workload.values) == axes
    assert bool(label.operator) == bool(axes)


def test_a_call_says_which_choice_of_the_operator_it_is() -> None:
    shapes = ((3, 1024), (3, 512), (3, 4), ())
    call = Call(
        "sglang::per_token_group_quant", shapes, ("", "", "", "128"), ("", "signed char", "")
    )
    assert rules().label(launch("kernel", call)).choices == (("FUSED", "true"), ("QUANT", "int8"))


def test_where_a_call_cannot_say_its_choice_the_kernels_name_does() -> None:
    call = Call("sglang::_run_activation_inplace", ((), (3, 16), (3, 8)))
    assert rules().label(launch(FLASHINFER, call)).choices == (("ACTIVATION", "gelu"),)


def test_another_kernel_inside_a_known_call_is_a_part_of_it() -> None:
    call = Call("_C::silu_and_mul", ((3, 8), (3, 16)))
    assert rules().label(launch("Memset", call)).launches == 0
    assert rules().label(launch("void vllm::act_and_mul_kernel<silu>()", call)).launches == 1


def test_the_experts_gemms_are_one_operator_of_two_launches() -> None:
    call = experts_call((8, 1, 1))
    label = rules().label(launch("fused_moe_kernel", call))
    assert (label.operator, label.launches) == ("fused_moe", 2)
    assert label.choices == (("WEIGHTS", "fp8_block"),)
    assert label.workload == Workload.of({"M": 5, "E": 8, "N": 48, "K": 64, "TOP_K": 2, "EP": 1})


def experts_call(scales: tuple[int, ...], dtype: str = "c10::Float8_e4m3fn") -> Call:
    shapes = ((5, 64), (8, 96, 64), (8, 64, 48), (5, 2), (5, 2), *[()] * 10, scales)
    return Call("sglang::inplace_fused_experts", shapes, types=("", dtype))


@pytest.mark.parametrize("scales", [(8,), (8, 96, 1), (8, 3, 2)])
def test_experts_in_fp8_that_have_no_blocks_of_128_are_none_of_the_operator(
    scales: tuple[int, ...],
) -> None:
    label = rules().label(launch("fused_moe_kernel", experts_call(scales)))
    assert (label.operator, label.workload) == ("", None)
    plain = rules().label(launch("fused_moe_kernel", experts_call((), "c10::BFloat16")))
    assert (plain.operator, plain.choices) == ("fused_moe", (("WEIGHTS", "bf16"),))


def test_a_replay_has_the_shapes_of_the_same_kernel_and_grid_elsewhere(tmp_path: Path) -> None:
    shapes = shapes_of(read(eager_layer(tmp_path / "eager.json")), rules())
    replay = read(replayed_layer(tmp_path / "graph.json"))
    found = dict(label_launches(replay.launches, rules(), shapes, {}))
    known = {one.operator: one.workload for one in found.values() if one.workload}
    assert known == {"silu_and_mul": Workload.of({"T": 64, "D": 14336})}


def test_one_kernel_and_grid_with_two_shapes_tells_nothing() -> None:
    one = launch("k", Call("_C::silu_and_mul", ((3, 8), (3, 16))))
    two = launch("k", Call("_C::silu_and_mul", ((3, 4), (3, 8))))
    trace = read_as(one, two)
    assert shapes_of(trace, rules()) == {}
    assert key_of(one) in shapes_of(read_as(one, one), rules())


def read_as(*launches: TracedLaunch) -> Trace:
    return Trace(Path("trace.json"), launches)


def test_what_torch_itself_records_of_a_call_is_read(tmp_path: Path) -> None:
    whole = json.loads((Path(__file__).parent / "data" / "cpu_of_torch_2_11.json").read_text())
    whole["traceEvents"] += [kernel("k", 1.0, 1.0, external=1), kernel(SILU, 2.0, 1.0, external=2)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(whole))
    found = [rules().label(one).workload for one in read(path).launches]
    assert found == [Workload.of({"T": 4, "D": 32})] * 2
