"""Write sessions as a trace set of FlashInfer-Bench, with the variants' sources as solutions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import numpy as np

from tuner.device.encoding import Array, encode
from tuner.device.inputs import NORMAL, draw_values, generator
from tuner.device.reference import blamed_on, load_reference
from tuner.extensions.export.cpp import ARRAY_TYPES, cpp_name, integer
from tuner.extensions.export.dispatch import options_of, source_files
from tuner.extensions.export.flashinfer.definition import (
    DTYPES,
    Problem,
    problems,
    reference_code,
    run_text,
)
from tuner.extensions.export.folder import as_argument
from tuner.extensions.export.pytorch.package import OperatorFiles, capability
from tuner.extensions.export.sources import CppSources, Measured, template
from tuner.extensions.export.winners import Winners
from tuner.model import TUNER_VERSION
from tuner.model.errors import InputError
from tuner.model.kernel import DTYPE_BYTES, FLOAT_DTYPES, Argument, KernelSpec, Workload

AUTHOR = "tune"
FILE = "binding.cu"
ENTRY_POINT = f"{FILE}::run"
# The same session gives the same inputs.
SEED = 0
# Between these FlashInfer-Bench draws random integers.
_RANDOM = {"int8": (-128, 127)}
_RANDOM_ELSE = (-1024, 1023)


def trace_files(
    package: str, operators: Sequence[OperatorFiles], folder: str = "."
) -> dict[str, str | bytes]:
    """Return all files of a trace set by their names in `folder`.

    Raises `InputError` for an operator of which several answers are right, a type that the schema
    has not, options that FlashInfer-Bench would not compile with, and a reference that needs
    modules of its own.
    """
    found = [_Traced(operator.winners) for operator in operators]
    files: dict[str, str | bytes] = {}
    for one in found:
        files |= dict(one.files())
    measured = operators[0].winners.measured
    specs = [one.spec for one in found]
    files["README.md"] = template("flashinfer/README.md.j2").render(
        version=TUNER_VERSION,
        device=measured.device,
        architecture=measured.architecture,
        capability=capability(measured.architecture),
        folder=folder,
        argument=as_argument(folder),
        problems=[problem for one in found for problem in one.problems],
        copied=[
            f"`{spec.name}`"
            for spec in specs
            if any(array.role == "inout" for array in _arrays(spec))
        ],
        codes=[
            f"`{spec.name}`"
            for spec in specs
            if any(tolerance.codes is not None for tolerance in spec.tolerances.values())
        ],
    )
    return files


class _Traced:
    """One session's definitions, workloads and solutions."""

    def __init__(self, winners: Winners) -> None:
        self.spec, self._measured = winners.spec, winners.measured
        self._reference = load_reference(self.spec.reference)
        if self._reference.canonical is not None:
            raise InputError(
                f"of {self.spec.name} several answers are right (`canonical` brings them into one "
                "form), and FlashInfer-Bench compares element by element",
                path=self.spec.reference,
                remedy="choose another --format for it",
            )
        self._code = reference_code(self.spec)
        sources = CppSources(self.spec, winners.dispatch, self._measured)
        self._constants, self._sources = sources.scalars, source_files(sources)
        if options := options_of(self.spec, self._sources.values()):
            raise InputError(
                f"is compiled with {' '.join(options)}, and FlashInfer-Bench takes no options",
                path=self.spec.path,
                remedy="choose another --format for it",
            )
        table = winners.dispatch.table
        workloads = [entry.workload for entry in table.entries]
        workloads += [held_out.workload for held_out in table.held_out]
        self.problems = problems(self.spec, self._measured.operators, workloads)

    def files(self) -> Iterator[tuple[str, str | bytes]]:
        """Give each file by its name in the trace set."""
        kind, chosen, device = self.spec.name, self._measured.operators, self._measured.device
        said = [f"{name} is {value}" for name, value in chosen.items()]
        said += [f"{scalar.name} is {scalar.value}" for scalar in self._constants]
        for problem in self.problems:
            definition = {
                "name": problem.name,
                "op_type": kind,
                "description": f"{kind}{': ' * bool(said)}{', '.join(said)}",
                **problem.described,
                "reference": run_text(problem, kind, self._code, chosen),
            }
            yield f"definitions/{kind}/{problem.name}.json", _json(definition)
            sources = {**self._sources, FILE: binding(problem, self.spec, self._measured)}
            solution = {
                "name": f"{problem.name}_{AUTHOR}",
                "definition": problem.name,
                "author": AUTHOR,
                "description": f"Variants tuned by tune {TUNER_VERSION} on {device}, with their "
                "dispatch by shape.",
                "spec": {
                    "language": "cuda",
                    "target_hardware": [device.replace(" ", "_")],
                    "entry_point": ENTRY_POINT,
                    "dependencies": [],
                    "destination_passing_style": True,
                    "binding": "tvm-ffi",
                },
                "sources": [{"path": path, "content": text} for path, text in sources.items()],
            }
            place = f"solutions/{AUTHOR}/{kind}/{problem.name}/{problem.name}_{AUTHOR}.json"
            yield place, _json(solution)
            lines = []
            for workload in problem.workloads:
                uuid = str(uuid5(NAMESPACE_URL, f"{problem.name}/{workload.key}"))
                # Inputs for which random ones would not do.
                stored = self._draw_inputs(problem, workload)
                path = f"blob/workloads/{kind}/{problem.name}/{problem.name}_{uuid}.safetensors"
                inputs: dict[str, Any] = {each.name: {"type": "random"} for each in problem.inputs}
                for name in stored:
                    inputs[name] = {"type": "safetensors", "path": path, "tensor_key": name}
                line = {
                    "definition": problem.name,
                    "workload": {"axes": problem.sizes(workload), "inputs": inputs, "uuid": uuid},
                    "solution": None,
                    "evaluation": None,
                }
                lines.append(f"{json.dumps(line)}\n")
                if stored:
                    yield path, safetensors(stored)
            yield f"workloads/{kind}/{problem.name}.jsonl", "".join(lines)

    def _draw_inputs(self, problem: Problem, workload: Workload) -> dict[str, tuple[str, Array]]:
        """Draw the inputs that random numbers of FlashInfer-Bench cannot stand for.

        These are floats that are not normally distributed, and integers with a range.
        """
        rng, operators = generator(np, SEED), self._measured.operators
        with blamed_on(self.spec.reference, f"`inputs` fails on {workload}"):
            given = self._reference.drawn(np, rng, workload.values, NORMAL, operators)
        found: dict[str, tuple[str, Array]] = {}
        for tensor in problem.inputs:
            argument, values = tensor.argument, given.get(tensor.argument.name)
            if values is None:
                if argument.dtype in FLOAT_DTYPES and argument.fill == "normal":
                    continue
                shape = argument.dimensions(workload.values)
                values = draw_values(np, rng, argument, NORMAL, shape, workload.values)
            low, high = _RANDOM.get(argument.dtype, _RANDOM_ELSE)
            whole = argument.dtype not in FLOAT_DTYPES and argument.dtype != "bool"
            if whole and values.min() <= low and values.max() >= high:
                continue
            found[tensor.name] = argument.dtype, encode(np, values, argument.dtype)
        return found


def binding(problem: Problem, spec: KernelSpec, measured: Measured) -> str:
    """Write the source with the entry point; raises `ExpressionError` for what C++ cannot say."""
    names = {axis: cpp_name(axis) for axis in spec.axes}
    tensors = (*problem.inputs, *problem.outputs)
    # The kernel works on the outputs, where it reads and writes one array.
    known = {
        defined_tensor.argument.name: cpp_name(defined_tensor.name) for defined_tensor in tensors
    }
    arrays = _arrays(spec)
    scratch = [array.name for array in arrays if array.role == "scratch"]
    known |= {name: cpp_name(name) for name in scratch}
    pointers = (
        f"static_cast<{ARRAY_TYPES[array.dtype]}*>({known[array.name]}.data_ptr())"
        for array in arrays
    )
    sizes = {axis: str(size) for axis, size in problem.fixed.items()}
    # In which tensor's dimension the size of the axis that varies is found.
    first = None
    if problem.varying is not None:
        tensor, place = problem.place
        first = tensor.name, cpp_name(tensor.name), place
        sizes[problem.varying] = f"{cpp_name(tensor.name)}.size({place})"
    return template("flashinfer/binding.cu.j2").render(
        name=problem.name,
        kernel=spec.name,
        version=TUNER_VERSION,
        device=measured.device,
        architecture=measured.architecture,
        parameters=", ".join(
            f"TensorView {cpp_name(defined_tensor.name)}" for defined_tensor in tensors
        ),
        first=first,
        sizes=[(names[axis], sizes[axis]) for axis in spec.axes],
        tensors=[
            {
                "name": defined_tensor.name,
                "local": cpp_name(defined_tensor.name),
                "type": DTYPES[defined_tensor.argument.dtype][1],
                "shape": ", ".join(integer(size, names) for size in defined_tensor.argument.shape),
            }
            for defined_tensor in tensors
        ],
        copied=[
            (
                cpp_name(output.argument.name),
                cpp_name(output.name),
                DTYPE_BYTES[output.argument.dtype],
            )
            for output in problem.outputs
            if output.argument.role == "inout"
        ],
        scratch=[(name, known[name]) for name in scratch],
        zeroed=[array.name for array in arrays if array.zeroed],
        passed=", ".join([*pointers, *names.values(), "tuned_stream"]),
        axes=", ".join(names.values()),
    )


def _arrays(spec: KernelSpec) -> list[Argument]:
    return [argument for argument in spec.arguments if not argument.is_scalar]


def safetensors(arrays: Mapping[str, tuple[str, Array]]) -> bytes:
    """Write arrays, as they are stored, with their types by name, in the format of safetensors."""
    header, data = dict[str, Any](), b""
    for name, (dtype, array) in arrays.items():
        stored = np.ascontiguousarray(array).tobytes()
        offsets = [len(data), len(data) + len(stored)]
        shape = list(array.shape)
        header[name] = {"dtype": DTYPES[dtype][2], "shape": shape, "data_offsets": offsets}
        data += stored
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2) + "\n"
