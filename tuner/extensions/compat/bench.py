"""Run and time kernels on arrays that the caller holds, on any device of ours."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import numpy as np

from tuner.app.instruments import compiler_for
from tuner.compiler.base import CompileResult
from tuner.device.base import CompileTarget, DeviceInfo, Outcome, Program
from tuner.device.encoding import Array
from tuner.device.select import gpu_count, open_device
from tuner.model.config import Config
from tuner.model.errors import DeviceError, InputError, KernelError
from tuner.model.expressions import Expression
from tuner.model.hardware import refusal
from tuner.model.kernel import (
    DTYPE_BYTES,
    Argument,
    KernelSpec,
    Launch,
    Limits,
    Tolerance,
    Workload,
)
from tuner.model.languages import CUDA, HIP, OPENCL, Language
from tuner.model.trial import Measurement, Status
from tuner.source import hide_host_code, parse_source
from tuner.space.choices import refusal as option_refusal

# The file that the verifier imports. It judges nothing: whoever asked compares the outputs.
TEXT = """from pathlib import Path

from tuner.extensions.compat.bench import Recorder

fixed = True
recorder = Recorder(Path({folder!r}), {written!r})
inputs, reference, canonical = recorder.inputs, recorder.reference, recorder.canonical
"""


class Recorder:
    """Give the arrays of `inputs/NAME.npy`, and write what kernels leave to `outputs/`.

    `written` names the arrays that a kernel may write.
    """

    def __init__(self, folder: Path, written: Sequence[str]) -> None:
        self._folder, self._written = folder, written
        self._given: dict[str, Any] = {}

    def inputs(self, xp: Any, rng: Any, axes: Mapping[str, int], fill: str) -> dict[str, Array]:
        for path in (self._folder / "inputs").glob("*.npy") if not self._given else ():
            self._given[path.stem] = xp.asarray(np.load(path))
        return dict(self._given)

    def reference(
        self, xp: Any, inputs: Mapping[str, Array], axes: Mapping[str, int]
    ) -> dict[str, Array]:
        return {name: xp.zeros(inputs[name].shape) for name in self._written}

    def canonical(
        self, xp: Any, outputs: Mapping[str, Array], axes: Mapping[str, int]
    ) -> dict[str, Array]:
        kept = self._folder / "outputs"
        number = len({path.name.partition(".")[0] for path in kept.iterdir()})
        for name, values in outputs.items():
            host = values if xp.__name__ == "numpy" else xp.asnumpy(values)
            np.save(kept / f"{number:04d}.{name}.npy", host)
        return {name: xp.zeros_like(values) for name, values in outputs.items()}


# A bench has one problem, which its arrays are the size of.
CALL = Workload.of({"call": 1})
# NVCC's choice of a target, and what it optimizes by itself: both are ours.
_DECIDED = re.compile(r"-?-(?:arch|gpu-architecture|gencode|code)\b.*|-O[0-3]")
_OPENCL_CONST = re.compile(r"\b(?:const|__constant|constant)\b[^*]*\*")
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ConfiguredKernel:
    """A source with one launch: what a config makes of a kernel."""

    config: Config
    source: str
    launch: Launch


@dataclass(frozen=True, slots=True)
class MeasuredConfig:
    """What became of an instance; `outputs` are all arguments after each call that was checked.

    Times are in seconds, those of `measurement` in microseconds.
    """

    status: Status
    reason: str = ""
    measurement: Measurement | None = None
    outputs: tuple[tuple[Any, ...], ...] = ()
    compile_s: float = 0.0
    benchmark_s: float = 0.0


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What a bench compiles and where it runs: `device` is as after `--device`."""

    kernel: str
    language: Language
    device: str
    options: tuple[str, ...] = ()
    include: tuple[Path, ...] = ()


@dataclass
class ArrayBench(AbstractContextManager["ArrayBench"]):
    """Measure instances of one kernel on the same arguments, as they were given.

    `arguments` are NumPy arrays and scalars in the kernel's order. Any array may be written that
    the kernel doesn't take through a pointer to const, and has its content anew before each call.
    `source` is that of any instance. Raises `InputError` for what no kernel takes, `DeviceError`
    where the device cannot be used.
    """

    settings: BenchSettings
    source: str
    arguments: Sequence[Any]
    _stack: ExitStack = field(default_factory=ExitStack, init=False)

    def __post_init__(self) -> None:
        self.arguments = [host_array(argument) for argument in self.arguments]

    def __enter__(self) -> Self:
        with self._stack:
            self._folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="tune-bench-")))
            spec = self._spec(self._folder)
            for name in ("inputs", "outputs"):
                (self._folder / name).mkdir()
            arrays = zip(spec.arguments, self.arguments, strict=True)
            for argument, values in arrays:
                if not argument.is_scalar:
                    kept = values.astype(np.float32) if values.dtype.kind == "V" else values
                    kept = kept.reshape(values.shape or (1,))
                    np.save(self._folder / "inputs" / f"{argument.name}.npy", kept)
            if self.settings.device.startswith("cuda") and not gpu_count():
                raise DeviceError(
                    "no NVIDIA GPU was found",
                    remedy='device="host" runs the kernel on the CPU, to verify it',
                )
            self._device = open_device(self.settings.device, spec, {}, [CALL])
            self._stack.callback(self._device.close)
            self._compiler = compiler_for(spec, self._device, None, self._stack)
            self._target = CompileTarget(spec, {}, self._device.info)
            self._spec_opened = spec
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def info(self) -> DeviceInfo:
        return self._device.info

    @property
    def written(self) -> tuple[int, ...]:
        return tuple(
            k for k, argument in enumerate(self._spec_opened.arguments) if argument.role == "inout"
        )

    def compile(self, instance: ConfiguredKernel) -> Future[CompileResult]:
        """Begin to compile; returns at once."""
        return self._compiler.submit(
            self._target.request(self._device_code(instance.source), (instance.launch,))
        )

    def measure(
        self, instance: ConfiguredKernel, compilation: Future[CompileResult] | None = None
    ) -> MeasuredConfig:
        """Compile, run, check that nothing else is written, and time."""
        began_s = time.perf_counter()
        result = (compilation or self.compile(instance)).result()
        compile_s = time.perf_counter() - began_s
        if not result.ok:
            status = Status.TIMEOUT if result.timed_out else Status.COMPILE
            return MeasuredConfig(status, result.error, compile_s=compile_s)
        resources = result.resources.get(instance.launch.kernel)
        over = resources and refusal(self._target.limits, resources, instance.launch, Limits())
        if over:
            return MeasuredConfig(Status.RESOURCE_LIMIT, over, compile_s=compile_s)
        for path in (self._folder / "outputs").iterdir():
            path.unlink()
        outcome: Outcome = self._device.run(self._program(instance, result))
        places = {
            argument.name: place for place, argument in enumerate(self._spec_opened.arguments)
        }
        calls: dict[str, list[Any]] = {}
        for path in sorted((self._folder / "outputs").iterdir()):
            number, name, _ = path.name.split(".")
            given = self.arguments[places[name]]
            values = calls.setdefault(number, list(self.arguments))
            values[places[name]] = np.load(path).view(given.dtype).reshape(given.shape)
        return MeasuredConfig(
            outcome.status,
            outcome.reason,
            outcome.measurement,
            tuple(map(tuple, calls.values())),
            compile_s,
            time.perf_counter() - began_s - compile_s,
        )

    def compare(
        self, instances: Sequence[ConfiguredKernel], rounds: int
    ) -> Sequence[tuple[float, ...]]:
        """Time instances that were right in turns: a row (us) a round, in their order."""
        programs = [
            self._program(instance, self.compile(instance).result()) for instance in instances
        ]
        return self._device.compare(programs, rounds=rounds).times_us

    def _program(self, instance: ConfiguredKernel, result: CompileResult) -> Program:
        source = self._device_code(instance.source)
        return self._target.program(source, CALL, (instance.launch,), result, instance.config)

    def _device_code(self, source: str) -> str:
        if self.settings.language is OPENCL:
            return source
        return hide_host_code(parse_source(source, Path(self.settings.kernel)))

    def _spec(self, folder: Path) -> KernelSpec:
        suffix = self.settings.language.suffix
        source = folder / f"kernel{suffix}"
        source.write_text(self.source, encoding="utf-8")
        arguments = tuple(
            _argument(f"argument{number}", values, constant=number in self._constants())
            for number, values in enumerate(self.arguments)
        )
        written = tuple(argument.name for argument in arguments if argument.role == "inout")
        # What the device decides is left out.
        stated = (option.strip() for option in self.settings.options)
        kept = [option for option in stated if not _DECIDED.fullmatch(option)]
        for option in kept:
            if wrong := option_refusal(option, self.settings.language):
                raise InputError(f"compiler option {option}: {wrong[0]}", remedy=wrong[1])
        reference = folder / "reference.py"
        reference.write_text(TEXT.format(folder=str(folder), written=written), encoding="utf-8")
        return KernelSpec(
            name=self.settings.kernel,
            path=reference,
            source=source,
            reference=reference,
            template=source,
            axes=("call",),
            arguments=arguments,
            tuned=(CALL,),
            held_out=(),
            min_bytes=Expression.parse(1),
            baseline=(),
            launch=(),
            tolerances=dict.fromkeys(written, Tolerance()),
            include_dirs=self.settings.include,
            compile_options=tuple(kept),
        )

    def _constants(self) -> frozenset[int]:
        """Find which parameters point to const, as far as the source shows it."""
        if self.settings.language is OPENCL:
            declared = rf"\bvoid\s+{re.escape(self.settings.kernel)}\s*\(([^)]*)\)"
            match = re.search(declared, self.source)
            taken = match[1].split(",") if match else []
            return frozenset(k for k, text in enumerate(taken) if _OPENCL_CONST.search(text))
        try:
            read = parse_source(self.source, Path(self.settings.kernel))
            kernel = read.kernel(self.settings.kernel.partition("<")[0])
        except KernelError:
            return frozenset()
        read_only = (k for k, p in enumerate(kernel.parameters) if p.const and p.pointers == 1)
        return frozenset(read_only)


def host_array(value: Any) -> Any:
    """Copy CuPy's and PyTorch's arrays to the host; the others stay as they are."""
    kind = type(value)
    if kind.__module__.partition(".")[0] == "cupy":
        return value.get()
    if kind.__module__.partition(".")[0] == "torch":
        return value.detach().cpu().numpy()
    return np.ascontiguousarray(value) if isinstance(value, np.ndarray) and value.ndim else value


def _argument(name: str, values: Any, *, constant: bool) -> Argument:
    dtype = values.dtype.name if isinstance(values, np.ndarray | np.generic) else ""
    if dtype not in DTYPE_BYTES:
        kind = dtype or type(values).__name__
        raise InputError(
            f"{name} is of type {kind}, which no kernel takes",
            remedy=f"use NumPy arrays and scalars, such as numpy.int32(5), of {list(DTYPE_BYTES)}",
        )
    if isinstance(values, np.generic):
        return Argument(name, dtype, value=Expression.parse(repr(values.item())))
    if not values.size:
        raise InputError(f"{name} is an array without elements", remedy="leave no array empty")
    shape = tuple(map(Expression.parse, values.shape or (1,)))
    return Argument(name, dtype, shape, role="input" if constant else "inout", deterministic=False)


def language_named(name: str | None, source: str) -> Language:
    """Tell a kernel's language by Kernel Tuner's name for it, or by its qualifiers."""
    languages = {"CUDA": CUDA, "CUPY": CUDA, "NVCUDA": CUDA, "OPENCL": OPENCL, "HIP": HIP}
    if name is not None and name.upper() in languages:
        return languages[name.upper()]
    if name is None and re.search(r"\b__kernel\b|\bkernel\s+void\b", source):
        return OPENCL
    if name is None and "__global__" in source:
        return CUDA
    raise InputError(
        f"lang={name!r}, and the source has no __global__ or __kernel function",
        remedy="kernels in CUDA, HIP and OpenCL are tuned: `lang` is CUDA, HIP or OpenCL",
    )


def device_named(device: int | str, language: Language) -> str:
    """Say what `--device` calls a number of Kernel Tuner's; a text stays as it is."""
    if isinstance(device, str):
        return device
    family = {"CUDA": "cuda", "HIP": "hip", "OpenCL": "opencl"}[language.name]
    return f"{family}:{device}" if device else family
