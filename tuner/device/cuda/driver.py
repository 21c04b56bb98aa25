"""The CUDA driver API as this project uses it: errors as exceptions, launches as objects."""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Mapping
from functools import cache
from math import prod
from typing import Any, Protocol

from cuda.bindings import driver

from tuner.device.layout import KernelParameters, Layout
from tuner.model.errors import WorkerError
from tuner.model.kernel import Launch
from tuner.model.tensor_maps import TensorMap

# The driver refused before anything ran: the context is as good as before.
REFUSALS = frozenset(
    {
        "CUDA_ERROR_INVALID_VALUE",
        "CUDA_ERROR_INVALID_IMAGE",
        "CUDA_ERROR_INVALID_SOURCE",
        "CUDA_ERROR_INVALID_CLUSTER_SIZE",
        "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "CUDA_ERROR_NOT_FOUND",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
    }
)
PORTABLE_CLUSTER_BLOCKS = 8
# Of a CUtensorMap.
MAP_BYTES, MAP_ALIGNMENT = 128, 64
# How a module begins: for every GPU, and for those with programmatic dependent launch.
PTX = """
.version 7.0
.target sm_70
.address_size 64"""
PTX_OF_HOPPER = """
.version 7.8
.target sm_90
.address_size 64"""
THREADS = 256  # of a block
# In %r5 a thread's place in the grid, in %r6 how many threads there are; uses %r1 to %r6.
POSITION = """\
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %nctaid.x;
  mad.lo.u32 %r5, %r1, %r2, %r3;
  mul.lo.u32 %r6, %r4, %r2;
"""
# All threads of the grid take turns at 16 bytes each. In bytes, %d3 is where a thread begins and
# %d4 how far on it continues; uses %r1 to %r6.
TURNS = f"""\
{POSITION}  mul.wide.u32 %d3, %r5, 16;
  mul.wide.u32 %d4, %r6, 16;
"""
_BLOCKS = 264
# Sets a flag where two ranges differ; their lengths are rounded up to 16 bytes, into the guards.
_DIFFER = f"""{PTX}
.visible .entry differ(
  .param .u64 first, .param .u64 second, .param .u64 size_bytes, .param .u64 flag)
{{
  .reg .pred %p<3>;
  .reg .b32 %r<16>;
  .reg .b64 %d<10>;
  ld.param.u64 %d1, [first];
  ld.param.u64 %d2, [second];
  ld.param.u64 %d5, [size_bytes];
  ld.param.u64 %d6, [flag];
{TURNS}  mov.u32 %r7, 0;
more:
  setp.ge.u64 %p1, %d3, %d5;
  @%p1 bra done;
  add.u64 %d7, %d1, %d3;
  add.u64 %d8, %d2, %d3;
  ld.global.v4.u32 {{%r8, %r9, %r10, %r11}}, [%d7];
  ld.global.v4.u32 {{%r12, %r13, %r14, %r15}}, [%d8];
  xor.b32 %r8, %r8, %r12;
  xor.b32 %r9, %r9, %r13;
  xor.b32 %r10, %r10, %r14;
  xor.b32 %r11, %r11, %r15;
  or.b32 %r8, %r8, %r9;
  or.b32 %r10, %r10, %r11;
  or.b32 %r7, %r7, %r8;
  or.b32 %r7, %r7, %r10;
  add.u64 %d3, %d3, %d4;
  bra more;
done:
  setp.eq.u32 %p2, %r7, 0;
  @%p2 ret;
  mov.u32 %r8, 1;
  st.global.u32 [%d6], %r8;
  ret;
}}
"""


class CudaError(WorkerError):
    """Report a failed driver call; `sticky` tells that the context is lost with it."""

    def __init__(self, message: str, *, sticky: bool = True) -> None:
        super().__init__(message)
        self.sticky = sticky


def call(function: Any, *arguments: Any) -> Any:
    """Call a driver function; return its value (or values), raise `CudaError` if it failed."""
    status, *values = function(*arguments)
    if status != driver.CUresult.CUDA_SUCCESS:
        name = status.name
        _, text = driver.cuGetErrorString(status)
        message = f"{function.__name__}: {name} ({text.decode() if text else 'no description'})"
        raise CudaError(message, sticky=name not in REFUSALS)
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


def allocate(size_bytes: int) -> int:
    """Allocate memory of this process's own on the GPU; raise `MemoryError` where it is full."""
    try:
        return int(call(driver.cuMemAlloc, size_bytes))
    except CudaError as error:
        if error.sticky:
            raise
        raise MemoryError(f"{size_bytes / 1e9:.3g} GB on the GPU: {error.message}") from error


def gpu_uuid(ordinal: int) -> str:
    """Identify a GPU as nvidia-smi does, `GPU-...`, whatever CUDA_VISIBLE_DEVICES numbers it."""
    try:
        call(driver.cuInit, 0)
    except RuntimeError as error:  # raised by the bindings where libcuda is not installed
        raise CudaError(f"no NVIDIA driver: {error}") from error
    identity = call(driver.cuDeviceGetUuid, call(driver.cuDeviceGet, ordinal))
    return f"GPU-{uuid.UUID(bytes=identity.bytes)}"


def gpu_name(ordinal: int) -> str:
    """Return the name that the driver gives a GPU, `NVIDIA H200`."""
    call(driver.cuInit, 0)
    name: bytes = call(driver.cuDeviceGetName, 128, call(driver.cuDeviceGet, ordinal))
    return name.split(b"\0")[0].decode()


def reset_persisting_l2() -> None:
    """Give back what of the L2 was set aside for persisting lines; before 8.0 there is none."""
    (status,) = driver.cuCtxResetPersistingL2Cache()
    fine = (driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_NOT_SUPPORTED)
    if status not in fine:
        raise CudaError(f"cuCtxResetPersistingL2Cache: {status.name}")


class LoadedProgram:
    """A cubin in this context, with its `functions` by the names that launches use."""

    def __init__(
        self, cubin: bytes, lowered: Mapping[str, str], launches: tuple[Launch, ...]
    ) -> None:
        self._module = call(driver.cuModuleLoadData, cubin)
        self.functions: dict[str, Any] = {}
        names = driver.CUfunction_attribute
        try:
            for launch in launches:
                symbol = lowered[launch.kernel].encode()
                function = call(driver.cuModuleGetFunction, self._module, symbol)
                self.functions[launch.kernel] = function
                # Together with what the code declares it may be over the 48 KB of the default.
                if launch.shared_bytes > 0:
                    name = names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                    call(driver.cuFuncSetAttribute, function, name, launch.shared_bytes)
                if prod(launch.cluster or ()) > PORTABLE_CLUSTER_BLOCKS:
                    name = names.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
                    call(driver.cuFuncSetAttribute, function, name, 1)
        except CudaError:
            driver.cuModuleUnload(self._module)
            raise

    def unload(self) -> None:
        call(driver.cuModuleUnload, self._module)


def encode_tensor_map(tensor_map: TensorMap, address: int) -> ctypes.Array[ctypes.c_char]:
    """Encode a tensor map of an array at an address, as a kernel takes it by value.

    By the C interface: the place has to be aligned, and that of an object of the bindings is not.
    """
    room, rank = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT), len(tensor_map.shape)
    content = (ctypes.c_char * MAP_BYTES).from_buffer(room, -ctypes.addressof(room) % MAP_ALIGNMENT)
    whole, half = ctypes.c_uint64 * rank, ctypes.c_uint32 * rank
    kind, swizzle, l2_promotion = tensor_map.codes
    status = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
        *(ctypes.byref(content), ctypes.c_int(kind), ctypes.c_uint(rank), ctypes.c_void_p(address)),
        *(whole(*reversed(tensor_map.shape)), whole(*reversed(tensor_map.strides))),
        *(half(*reversed(tensor_map.box)), half(*(1,) * rank)),
        *map(ctypes.c_int, (0, swizzle, l2_promotion, 0)),
    )
    if status:
        name = driver.CUresult(status).name
        raise CudaError(f"cuTensorMapEncodeTiled: {name}", sticky=name not in REFUSALS)
    return content


class LaunchArguments(KernelParameters):
    """A kernel's parameters for one place in memory, tensor maps of arrays there among them."""

    def __init__(self, layout: Layout, base: int) -> None:
        super().__init__(layout, base)
        self._maps: dict[TensorMap, ctypes.Array[ctypes.c_char]] = {}

    def address(self, taken: tuple[str, ...] = (), maps: tuple[TensorMap, ...] = ()) -> int:
        """Return where the addresses of what a launch takes lie; tensor maps come last."""
        if not maps:
            return super().address(taken)
        if (taken, maps) not in self._pointers:
            values = [self._values[place] for place in self.layout.places(taken)]
            for tensor_map in maps:
                if tensor_map not in self._maps:
                    self._maps[tensor_map] = encode_tensor_map(
                        tensor_map, self.base + self.layout.slot(tensor_map.of).offset
                    )
                values.append(self._maps[tensor_map])
            self._point_to((taken, maps), values)
        return ctypes.addressof(self._pointers[taken, maps])


class Issuer(Protocol):
    """One operator call, issued many times; `relaxed` captures allow what peers may do.

    `repeats` says whether calls on the same inputs have to give the same bits.
    """

    relaxed: bool

    @property
    def repeats(self) -> bool: ...

    def issue(self, arguments: LaunchArguments) -> None:
        """Enqueue the call; inside a capture it becomes part of the graph."""

    def collect(self, arguments: LaunchArguments) -> None:
        """Enqueue what puts the results of the last call there into the outputs, untimed."""

    def results(self, arguments: LaunchArguments) -> Mapping[str, Any]:
        """Give the tensors that the last call there returned instead of writing the outputs."""


class Launcher:
    """Every launch of a program, configured once and issued many times."""

    relaxed = False
    repeats = True

    def __init__(
        self,
        program: LoadedProgram,
        launches: tuple[Launch, ...],
        stream: Any,
        *,
        isolated: bool = False,
    ) -> None:
        self._launches = [
            (
                _launch_config(launch, stream, isolated),
                program.functions[launch.kernel],
                (launch.arguments, launch.maps),
            )
            for launch in launches
        ]

    def issue(self, arguments: LaunchArguments) -> None:
        for config, function, taken in self._launches:
            (status,) = driver.cuLaunchKernelEx(config, function, arguments.address(*taken), 0)
            if status != driver.CUresult.CUDA_SUCCESS:
                raise CudaError(
                    f"cuLaunchKernelEx: {status.name}", sticky=status.name not in REFUSALS
                )

    def collect(self, arguments: LaunchArguments) -> None:
        """Nothing to do: a kernel writes its outputs itself."""

    def results(self, arguments: LaunchArguments) -> Mapping[str, Any]:
        """Give none: a kernel writes its outputs itself."""
        return {}


def _launch_config(launch: Launch, stream: Any, isolated: bool) -> Any:
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes = launch.shared_bytes
    config.hStream = stream
    names, attributes = driver.CUlaunchAttributeID, []
    if launch.pdl and not isolated:
        attribute = driver.CUlaunchAttribute()
        attribute.id = names.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    if launch.cluster is not None:
        attribute = driver.CUlaunchAttribute()
        attribute.id = names.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size = attribute.value.clusterDim
        size.x, size.y, size.z = launch.cluster
        attributes.append(attribute)
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


class PtxKernel:
    """A kernel of a PTX module, in the current context."""

    def __init__(self, text: str, name: str) -> None:
        module = call(driver.cuModuleLoadData, text.encode() + b"\0")
        self.function = call(driver.cuModuleGetFunction, module, name.encode())

    def issue(
        self,
        stream: Any,
        blocks: int,
        *values: Any,
        shared_bytes: int = 0,
        programmatic: bool = False,
    ) -> None:
        """Enqueue a launch with the `ctypes` numbers that it takes; they are copied at once.

        A `programmatic` one may begin before the launch in front of it has ended.
        """
        arguments = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        address = ctypes.addressof(arguments)
        if programmatic:
            launch = Launch("", (blocks, 1, 1), (THREADS, 1, 1), shared_bytes, pdl=True)
            config = _launch_config(launch, stream, isolated=False)
            call(driver.cuLaunchKernelEx, config, self.function, address, 0)
            return
        shape = (blocks, 1, 1, THREADS, 1, 1, shared_bytes)
        call(driver.cuLaunchKernel, self.function, *shape, stream, address, 0)


@cache
def load_kernel(text: str, name: str) -> PtxKernel:
    """Load a kernel once in this process, which has one context."""
    return PtxKernel(text, name)


def compare_bytes(stream: Any, first: int, second: int, size_bytes: int, flag: int) -> None:
    """Enqueue a comparison; the word at `flag` becomes 1 where they differ."""
    values = map(ctypes.c_uint64, (first, second, -(-size_bytes // 16) * 16, flag))
    load_kernel(_DIFFER, "differ").issue(stream, _BLOCKS, *values)


def read_flag(flag: int) -> bool:
    """Read a flag, once what is enqueued has ended."""
    word = ctypes.c_uint32()
    call(driver.cuMemcpyDtoH, ctypes.addressof(word), flag, 4)
    return bool(word.value)
