"""The launches of a search-space file: what kernels take, and the tensor maps behind that."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from tuner.model.kernel import DTYPE_BYTES, Argument, KernelSpec, LaunchSpec
from tuner.model.tensor_maps import RANKS, TensorMapSpec
from tuner.space.choices import ExpressionReader
from tuner.space.schema import LaunchModel, TensorMapModel
from tuner.space.yaml import Document

_FUNCTION = re.compile(r"[A-Za-z_]\w*(::[A-Za-z_]\w*)*(<[^\n;{}]*>)?", re.ASCII)


def read_launch(
    reader: ExpressionReader, item: LaunchModel, arguments: Sequence[Argument], *here: str | int
) -> LaunchSpec:
    """Read the launch at `here`; raise `SpaceError` with the line of what is wrong in it."""
    document = reader.document
    if not _FUNCTION.fullmatch(item.kernel):
        remedy = "write a function, `scale_rows`, or an instantiation, `scale_rows<8>`"
        message = f"`{item.kernel}` is not a kernel's name"
        raise document.error(message, *here, "kernel", remedy=remedy)
    declared, taken = [argument.name for argument in arguments], item.arguments or []
    for i, name in enumerate(taken):
        if name not in declared or name in taken[:i]:
            what = "stands there twice" if name in declared else "is not declared"
            near = get_close_matches(name, set(declared) - set(taken), n=1)
            remedy = f"did you mean `{near[0]}`? " if near else ""
            remedy += f"arguments: {', '.join(declared)}"
            message = f"`{name}`, an argument of `{item.kernel}`, {what}"
            raise document.error(message, *here, "arguments", i, remedy=remedy)
    return LaunchSpec(
        kernel=item.kernel,
        grid=reader.all(item.grid, *here, "grid"),
        block=reader.all(item.block, *here, "block"),
        shared_memory=reader.optional(item.shared_memory, *here, "shared_memory"),
        cluster=reader.all(item.cluster, *here, "cluster"),
        pdl=reader.optional(item.pdl, *here, "pdl"),
        when=reader.optional(item.when, *here, "when"),
        line=document.line(*here),
        arguments=tuple(taken),
        maps=tuple(
            _tensor_map(reader, one, arguments, *here, "maps", i)
            for i, one in enumerate(item.maps or ())
        ),
    )


def _tensor_map(
    reader: ExpressionReader, item: TensorMapModel, arguments: Sequence[Argument], *here: str | int
) -> TensorMapSpec:
    document = reader.document
    arrays = {one.name: one for one in arguments if not one.is_scalar}
    if item.of not in arrays:
        what = "a scalar" if item.of in {one.name for one in arguments} else "not declared"
        near = get_close_matches(item.of, arrays, n=1)
        remedy = f"did you mean `{near[0]}`? " if near else ""
        remedy += f"arrays: {', '.join(arrays)}"
        raise document.error(f"`{item.of}` is {what}", *here, "of", remedy=remedy)
    array, shape = arrays[item.of], reader.all(item.shape, *here, "shape")
    rank = len(shape or array.shape)
    if rank not in RANKS:
        message = f"`{item.of}` has {rank} dimension{'s' * (rank > 1)}, and a tensor map 2 or 3"
        remedy = "give another view of the same memory with `shape: [...]`"
        raise document.error(message, *here, "of", remedy=remedy)
    for key, given, wanted in (
        ("box", item.box, rank),
        ("strides", item.strides, rank - 1),
    ):
        if given is not None and len(given) != wanted:
            message = f"`{key}` of the map of `{item.of}` has {len(given)} sizes"
            remedy = f"{wanted} are needed, in the order of the {rank} dimensions of its shape"
            raise document.error(message, *here, key, remedy=remedy)
    return TensorMapSpec(
        of=array.name,
        dtype=array.dtype,
        element_bytes=DTYPE_BYTES[array.dtype],
        own_shape=array.shape,
        shape=shape or array.shape,
        box=reader.all(item.box, *here, "box"),
        strides=reader.all(item.strides, *here, "strides"),
        swizzle=reader.optional(item.swizzle, *here, "swizzle"),
        l2_promotion=reader.optional(item.l2_promotion, *here, "l2_promotion"),
        line=document.line(*here),
    )


def check_maps(document: Document, spec: KernelSpec) -> None:
    """Raise `SpaceError` for what the hardware takes of a map with no config, or on a workload."""
    workloads = (*spec.tuned, *spec.held_out, *spec.edge_cases)
    for launches, here in ((spec.baseline, ("baseline", "launch")), (spec.launch, ("launch",))):
        for i, launch in enumerate(launches):
            for j, one in enumerate(launch.maps):
                refused, on = one.refusal({}), ""
                for workload in workloads if launch.when is None else ():
                    if refused is None and (refused := one.refusal(workload.values)):
                        on = f" on the workload {workload}"
                if refused:
                    message, remedy = refused
                    place = (*here, i, "maps", j)
                    raise document.error(f"{message}{on}", *place, remedy=remedy)


def check_taken(document: Document, spec: KernelSpec) -> None:
    """Raise `SpaceError` where no launch takes an output, or the baseline what a config sizes."""
    for i, launch in enumerate(spec.baseline):
        for argument in filter(spec.is_sized, spec.reached(launch)):
            message = f"the baseline takes `{argument.name}`, whose shape a config chooses"
            remedy = "list the `arguments` of this launch without it: the baseline has no config"
            raise document.error(message, "baseline", "launch", i, remedy=remedy)
    for launches, here in ((spec.baseline, ("baseline", "launch")), (spec.launch, ("launch",))):
        taken = {argument.name for launch in launches for argument in spec.reached(launch)}
        for argument in spec.arguments:
            if argument.role in ("output", "inout") and argument.name not in taken:
                message = f"no launch takes the {argument.role} `{argument.name}`"
                remedy = "name it among the `arguments` of the launch that writes it"
                raise document.error(message, *here, remedy=remedy)
