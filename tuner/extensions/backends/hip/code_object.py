"""What AMD's code objects say of their kernels: names, registers, LDS, scratch."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

from tuner.model.errors import DeviceError
from tuner.model.trial import Resources

# LLVM's user guide for AMDGPU: the note that holds the metadata, and the relocation of a pointer.
_METADATA_NOTE, _RELATIVE64 = 32, 13
_REGISTER_BYTES = 4


def kernel_resources(code: bytes) -> dict[str, Resources]:
    """Read the resources of every kernel in a code object, by its lowered name.

    A kernel's scratch is its `stack_bytes`, and the registers that it spills to there are counted
    as stores: how often they are loaded again the metadata does not say.
    """
    return {kernel[".name"]: _resources(kernel) for kernel in _metadata(code)["amdhsa.kernels"]}


def wave_sizes(code: bytes) -> frozenset[int]:
    """Read how many lanes the waves of a code object's kernels have."""
    return frozenset(int(one[".wavefront_size"]) for one in _metadata(code)["amdhsa.kernels"])


def pointed_functions(code: bytes, pointers: tuple[str, ...]) -> dict[str, str]:
    """Find the lowered name of the function that each of these global pointers holds."""
    elf = _elf(code)
    places = {symbol.entry.st_value: symbol.name for symbol in _symbols(elf, "STT_OBJECT")}
    functions = {symbol.entry.st_value: symbol.name for symbol in _symbols(elf, "STT_FUNC")}
    found = {}
    relocations = elf.get_section_by_name(".rela.dyn")
    for one in relocations.iter_relocations() if relocations is not None else ():
        name = places.get(one["r_offset"])
        if name in pointers and one["r_info_type"] == _RELATIVE64:
            found[name] = functions[one["r_addend"]]
    return found


def _resources(kernel: Mapping[str, Any]) -> Resources:
    return Resources(
        registers=kernel[".vgpr_count"],
        spill_store_bytes=kernel[".vgpr_spill_count"] * _REGISTER_BYTES,
        static_shared_bytes=kernel[".group_segment_fixed_size"],
        stack_bytes=kernel[".private_segment_fixed_size"],
        scalar_registers=kernel[".sgpr_count"],
        accumulation_registers=kernel.get(".agpr_count", 0),
        max_threads=kernel[".max_flat_workgroup_size"],
    )


def _metadata(code: bytes) -> Mapping[str, Any]:
    import msgpack

    section = _elf(code).get_section_by_name(".note")
    for note in section.iter_notes() if section is not None else ():
        if note["n_name"] == "AMDGPU" and note["n_type"] in (_METADATA_NOTE, "NT_AMDGPU_METADATA"):
            content: Mapping[str, Any] = msgpack.unpackb(note["n_descdata"])
            return content
    return {"amdhsa.kernels": []}


def _symbols(elf: Any, kind: str) -> Iterator[Any]:
    for symbol in elf.get_section_by_name(".dynsym").iter_symbols():
        if symbol.entry.st_info.type == kind:
            yield symbol


def _elf(code: bytes) -> Any:
    from elftools.elf.elffile import ELFFile

    return ELFFile(io.BytesIO(code))


def require_readers() -> None:
    """Raise `DeviceError` where the packages that read code objects are not installed."""
    try:
        import elftools  # noqa: F401
        import msgpack  # noqa: F401
    except ImportError as error:
        raise DeviceError(
            f"compiling HIP needs the package {error.name}",
            remedy="pip install -e '.[hip]' in the checkout, or: pip install pyelftools msgpack",
        ) from error
