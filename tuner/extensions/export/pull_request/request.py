"""`tune export --format sglang-pr` and `vllm-pr`: the files that a maintainer asks for."""

from __future__ import annotations

import ast
import inspect
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, floor, sqrt
from pathlib import Path
from typing import Any

from tuner.compiler.cache import Cache
from tuner.compiler.pool import NvrtcPool
from tuner.dispatch.table import SetSelection
from tuner.extensions.export.cpp import ARRAY_TYPES, cpp_name
from tuner.extensions.export.flashinfer.definition import DTYPES
from tuner.extensions.export.folder import as_argument, with_table, write_folder
from tuner.extensions.export.pull_request.kernel import IDIOM, ShownKernel, in_idiom, shown_kernel
from tuner.extensions.export.sources import describe_surroundings, template
from tuner.extensions.export.variants import CallerScalar, caller_scalars
from tuner.extensions.export.winners import Winners, cuda_winners_of
from tuner.extensions.runtime.pytorch.replacing import Engine
from tuner.extensions.runtime.sglang.hooks import ENGINE as SGLANG
from tuner.extensions.runtime.vllm.hooks import ENGINE as VLLM
from tuner.model import TUNER_VERSION
from tuner.model.errors import InputError
from tuner.model.expressions import substitute
from tuner.model.kernel import Argument, KernelSpec, Workload
from tuner.space.yaml import read as read_yaml

# The source whose times the page of evidence has.
MEASURED = "measured.cu"
_FACTS = Path(__file__).with_name("facts.yaml")


@dataclass(frozen=True, slots=True)
class Project:
    """An engine's project: where its files go, by templates' names, and how it calls things."""

    engine: Engine
    idiom: Mapping[str, str]
    files: Mapping[str, str]
    step: str
    notes: tuple[str, ...]


PROJECTS = {
    "sglang-pr": Project(
        SGLANG,
        IDIOM,
        {
            "kernel.cuh": "python/sglang/kernels/jit/csrc/{folder}/{name}.cuh",
            "wrapper.py": "python/sglang/kernels/ops/{group}/{name}.py",
            "test.py": "test/registered/kernels/ops/{group}/test_{name}.py",
            "bench.py": "test/registered/kernels/benchmark/{group}/bench_{name}.py",
        },
        "`python benchmarks/sglang_step.py` of tune, with `--format sglang` of the same session",
        ("Import the wrapper in the group's `__init__.py`, which registers it.",),
    ),
    "vllm-pr": Project(
        VLLM,
        {},
        {
            "kernel.cu": "vllm/kernels/cuda/{name}.cu",
            "kernel.py": "vllm/kernels/cuda/{name}.py",
            "test.py": "tests/kernels/core/test_{name}.py",
            "bench.py": "benchmarks/kernels/benchmark_{name}.py",
        },
        "throughput of `vllm bench` with and without it",
        ("Add `kernels/cuda/*.cu` to the package data in setup.py, and an `__init__.py`.",),
    ),
}


def export_pull_request(
    form: str,
    session: Path,
    to: Path,
    model: str | None = None,
    release: str | None = None,
    space: Path | None = None,
) -> str:
    """Write the files for one operator and the shapes of one model to `to`; say what they are.

    Raises `InputError` for an operator that the project calls nothing for, a release or a model
    that nobody here knows, and a session with shapes of another model or of several.
    """
    project = PROJECTS[form]
    engine, known = project.engine, ", ".join(project.engine.versions)
    if release is not None and release not in engine.versions:
        raise InputError(
            f"the layout of {engine.name} {release} is not known here",
            remedy=f"write for {known}, and move the files: --release {engine.versions[-1]}",
        )
    sizes: dict[str, int] = {}

    def choose(spec: KernelSpec, workloads: Sequence[Workload]) -> Sequence[Workload]:
        sizes.update(_choose_sizes(spec, workloads, engine, model))
        return [workload for workload in workloads if sizes.items() <= workload.values.items()]

    winners = cuda_winners_of(session, SetSelection(most=1), space, choose)
    with NvrtcPool(cache=Cache()) as compiler:
        kernel = shown_kernel(winners, sizes, compiler, project.idiom)
    request = _Request(project, winners, kernel, sizes, model, release or engine.versions[-1])
    files = request.files(to)
    write_folder(to, with_table(files, {"tune": TUNER_VERSION, "form": form}))
    return f"{to}: {request.name}, a kernel of {kernel.lines} lines; read EVIDENCE.md"


@cache
def _facts() -> Any:
    return read_yaml(_FACTS).data


def _choose_sizes(
    spec: KernelSpec, workloads: Sequence[Workload], engine: Engine, model: str | None
) -> dict[str, int]:
    """Choose the sizes that a model fixes."""
    fact = _facts()["operators"].get(spec.name)
    if fact is None:
        raise InputError(
            f"nobody has said where {spec.name} belongs in {engine.name}",
            path=spec.path,
            remedy=f"there are: {', '.join(_facts()['operators'])}; --format torch takes any",
        )
    axes = list(fact["sizes"])
    there = {
        tuple(workload.values[axis] for axis in axes)
        for workload in workloads
        if not workload.held_out
    }
    wanted = (
        {axis: _sizes_of(model, names) for axis, names in fact["sizes"].items()} if model else {}
    )
    fits = sorted(
        one
        for one in there
        if all(size in wanted.get(axis, [size]) for axis, size in zip(axes, one, strict=True))
    )
    if len(fits) == 1:
        return dict(zip(axes, fits[0], strict=True))
    names = "; ".join(
        " ".join(f"{axis}={size}" for axis, size in zip(axes, one, strict=True))
        for one in sorted(fits or there)
    )
    if not fits:
        raise InputError(
            f"no tuned shape is one of {model}: {spec.name} has {names}",
            path=spec.path,
            remedy="tune for it, such as `--workload T=64,...`, or name another with --model",
        )
    raise InputError(
        f"the tuned shapes of {spec.name} are of several models: {names}",
        path=spec.path,
        remedy="name one with --model, or tune for the shapes of one with --workload",
    )


def _sizes_of(model: str, names: Sequence[str]) -> list[int]:
    """Read what a model has by any of these names of a config.json."""
    models, path = _facts()["models"], Path(model)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        content = json.loads(path.read_text("utf-8"))
        content = content.get("text_config", content)
        return [content[name] for name in names if isinstance(content.get(name), int)]
    if model not in models:
        raise InputError(
            f"no model is called {model!r} here, and no config.json is there",
            remedy=f"name the file of the model, or one of {', '.join(models)}",
        )
    return [size for name in names for size in models[model].get(name, ())]


class _Request:
    """One operator's files, from what is known of it."""

    def __init__(
        self,
        project: Project,
        winners: Winners,
        kernel: ShownKernel,
        sizes: Mapping[str, int],
        model: str | None,
        release: str,
    ) -> None:
        self._project, self._winners, self._kernel = project, winners, kernel
        self._spec, self._sizes, self._model, self._release = winners.spec, sizes, model, release
        self._scalars: Sequence[CallerScalar] = caller_scalars(winners.spec)
        self._fact = _facts()["operators"][winners.spec.name]
        (self._varying,) = [axis for axis in winners.spec.axes if axis not in sizes]
        words = [f"{axis.lower()}{size}" for axis, size in sizes.items()]
        self.name = "_".join([winners.spec.name, *words])

    def files(self, to: Path) -> dict[str, str]:
        """Return each file by its place in the project, and the page of evidence."""
        values, kind = self._values(), self._project.engine.distribution
        made = {}
        for source, place in self._project.files.items():
            where = place.format(name=self.name, **self._fact)
            made[where] = template(f"pull_request/{kind}/{source}.j2").render(**values)
        values |= self._evidence(made, to)
        return made | {
            "EVIDENCE.md": template("pull_request/evidence.md.j2").render(**values),
            MEASURED: self._kernel.measured_source,
        }

    def _values(self) -> dict[str, Any]:
        spec, kernel, measured = self._spec, self._kernel, self._winners.measured
        arrays = [self._array(argument) for argument in spec.arguments if not argument.is_scalar]
        read = [array for array in arrays if array["role"] != "output"]
        outputs = [array for array in arrays if array["role"] == "output"]
        results = [array["local"] for array in arrays if array["role"] != "input"]
        source = next(one for one in read if one["place"] is not None)
        rows = f"{source['local']}.shape[{source['place']}]"
        for output in outputs:
            other = "" if output["dtype"] == source["dtype"] else f", dtype=torch.{output['dtype']}"
            shape = output["python_shape"].replace("rows", rows)
            output["empty"] = f"{source['local']}.new_empty(({shape}){other})"
        numbers = [(scalar.name, float(scalar.value)) for scalar in self._scalars]
        numeric = [{"name": name, "value": repr(value)} for name, value in numbers]
        tolerances = [
            spec.tolerances[array["name"]] for array in arrays if array["role"] != "input"
        ]
        bits = {4: "int32", 2: "int16", 1: "uint8"}[int(re.sub(r"\D", "", arrays[0]["bits"])) // 8]
        choices = ", ".join(f"{name}={value}" for name, value in measured.operators.items())
        view = "const tvm::ffi::TensorView" if self._project.idiom else "TensorView"
        taken = [f"{view} {cpp_name(array['name'])}" for array in arrays]
        taken += [f"{scalar.kind} {scalar.name}" for scalar in self._scalars]
        locals_ = ", ".join(one["local"] for one in read)
        return {
            "name": self.name,
            "operator": spec.name,
            "contract": " and ".join(f"{axis} = {size}" for axis, size in self._sizes.items()),
            "sm": measured.architecture.removeprefix("sm_"),
            "choices": choices,
            "tuned_with": measured.operators,
            "title": kernel.title,
            "sha": kernel.sha,
            "kernel": kernel.text,
            "includes": kernel.includes,
            "launches": kernel.launches,
            "counts_sms": any(
                "multiprocessors" in launch.grid + launch.when for launch in kernel.launches
            ),
            "varying": self._varying,
            "capability": self._winners.device.compute_capability,
            **self._fact,
            "arrays": arrays,
            "inputs": read,
            "outputs": outputs,
            "source": source,
            "scalars": numeric,
            "parameters": (",\n      " if self._project.idiom else ", ").join(taken),
            "signature": [
                *(f"{one['local']}: torch.Tensor" for one in read),
                *(f"{one['name']}: float = {one['value']}" for one in numeric),
                *(f"{output['local']}: torch.Tensor | None = None" for output in outputs),
            ],
            "returns": "torch.Tensor"
            if len(results) == 1
            else f"tuple[{', '.join(['torch.Tensor'] * len(results))}]",
            "passed": [*(array["local"] for array in arrays), *(one["name"] for one in numeric)],
            "called": [
                *(one["local"] for one in read),
                *(f"{output['local']}={output['local']}" for output in outputs),
            ],
            "written": ", ".join(results),
            "results": results,
            "locals_": f"({locals_},)" if len(read) == 1 else locals_,
            "rows_of": rows,
            "rows": sorted({workload.values[self._varying] for workload in self._workloads()}),
            "proved": self._proved(),
            "tolerances": [(tolerance.relative, tolerance.absolute) for tolerance in tolerances],
            "bits": bits,
            **self._production([array["local"] for array in arrays], numeric),
        }

    def _array(self, argument: Argument) -> dict[str, Any]:
        """Describe an array as the templates write it."""
        shape = [substitute(size, self._sizes).tree for size in argument.shape]
        names = [part.id for part in shape if isinstance(part, ast.Name)]
        plain = all(isinstance(part, ast.Constant | ast.Name) for part in shape)
        if not plain or names not in ([], [self._varying]) or names != names[:1]:
            raise InputError(
                f"{argument.name} has a shape that a wrapper cannot ask for: "
                f"{', '.join(map(ast.unparse, shape))}",
                path=self._spec.path,
                line=argument.line,
                remedy="--format torch has it",
            )
        sizes = [str(p.value) if isinstance(p, ast.Constant) else None for p in shape]
        rows = [size or "rows" for size in sizes]
        place = sizes.index(None) if None in sizes else None
        tail = [size for size in sizes[(place or 0) + (place is not None) :] if size]
        return {
            "name": argument.name,
            "local": argument.name,
            "role": argument.role,
            "dtype": DTYPES[argument.dtype][0],
            "dl_type": DTYPES[argument.dtype][1],
            "bits": DTYPES[argument.dtype][1],
            "type": in_idiom(ARRAY_TYPES[argument.dtype], self._project.idiom),
            "place": place,
            "shape": ", ".join(size or f"{self._varying}_size" for size in sizes),
            "shape_here": ", ".join(size or self._varying for size in sizes),
            "python_shape": ", ".join(rows) + ("," if len(rows) == 1 else ""),
            "tail": ", ".join(tail) + ("," if len(tail) == 1 else ""),
        }

    def _production(
        self, arrays: Sequence[str], numbers: Sequence[Mapping[str, str]]
    ) -> dict[str, str]:
        """Write the call of what serves today, from the plugin's own fallback."""
        engine, spec = self._project.engine, self._spec
        hooks = engine.hooks_of(spec.name, self._winners.measured.operators)
        hook = next((one for one in hooks if one.fallback is not None), None)
        if hook is None or hook.fallback is None:
            why = engine.why_not.get(spec.name, "its plugin has no call of it with these arrays")
            raise InputError(
                f"{engine.name} has nothing to compare {spec.name} with: {why}",
                path=spec.path,
                remedy="--format torch, or cpp, needs no such call",
            )
        function = ast.parse(inspect.getsource(hook.fallback)).body[0]
        assert isinstance(function, ast.FunctionDef)
        module, _, target = hook.target.rpartition(".")
        taken = [one.arg for one in function.args.args]
        known = dict(zip(taken, ["served_today", *arrays], strict=False))
        known |= {number["name"]: number["value"] for number in numbers}
        statement = function.body[0]
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node.id in known:
                node.id = known[node.id]
        return {
            "production": ast.unparse(statement),
            # What isn't of the project itself stands with PyTorch.
            "imports": ("\n{}" if module.startswith(engine.distribution) else "{}\n").format(
                f"from {module} import {target} as served_today"
            ),
        }

    def _workloads(self) -> list[Workload]:
        table = self._winners.dispatch.table
        return [
            *(entry.workload for entry in table.entries),
            *(held_out.workload for held_out in table.held_out),
        ]

    def _proved(self) -> list[tuple[int, int]]:
        """Say from which to which rows it serves: halfway, in logarithms, to what doesn't."""
        points = self._winners.dispatch.table.points
        served = sorted((w.values[self._varying], kernel is not None) for w, kernel in points)
        ranges: list[tuple[int, int]] = []
        for at, (rows, serves) in enumerate(served):
            if not serves:
                continue
            before = served[at - 1] if at else (rows, True)
            after = served[at + 1] if at + 1 < len(served) else (rows, True)
            first = rows if not at else ceil(sqrt(before[0] * rows))
            last = floor(sqrt(after[0] * rows))
            if ranges and at and before[1]:
                first = ranges.pop()[0]
            ranges.append((first, last))
        return ranges

    def _evidence(self, made: Mapping[str, str], to: Path) -> dict[str, Any]:
        winners, kernel = self._winners, self._kernel
        table, spec, measured = winners.dispatch.table, winners.spec, winners.measured
        places = list(made)
        proved = ", ".join(f"{first} to {last}" for first, last in self._proved())
        command = shlex.join(winners.manifest.command)
        if measured.recorded:
            command += "  # replays a recording; on a GPU: --device cuda"
        release = self._release
        return {
            "version": TUNER_VERSION,
            "measured": MEASURED,
            "model": self._model or "one model's",
            "proved_text": f"{self._varying} = {proved}",
            "source_lines": kernel.measured_source.count("\n"),
            "kernel_lines": kernel.lines,
            "file_sha": json.loads(with_table(made, {})["dispatch.json"])["files"][places[0]],
            "engine": self._project.engine.name,
            "release": release,
            "device": measured.device,
            "environment": sorted(winners.environment.items()),
            "chains": list(describe_surroundings(spec, table).values()),
            "rows_measured": [
                *(self._times(entry.workload, entry.kernel is not None) for entry in table.entries),
                *(
                    self._times(
                        held_out.workload, held_out.kernel is not None and not held_out.refuted
                    )
                    for held_out in table.held_out
                ),
            ],
            "accuracy": self._accuracy(),
            "commands": [
                command,
                f"pip install {self._project.engine.distribution}=={release}  # or a checkout, "
                f"with the files of {as_argument(str(to))} in it",
                f"python -m pytest -s {places[2]}",
                f"python {places[3]}",
            ],
            "step": self._project.step,
            "notes": self._project.notes,
        }

    def _times(self, workload: Workload, serves: bool) -> list[str]:
        """Write a row of the table of times."""
        dispatch = self._winners.dispatch
        variant = dispatch.table.kernels[0].variant
        compared = dispatch.evidence.get(workload, ())
        found = next((one for one in compared if one.variant == variant), None)
        size = f"{workload.values[self._varying]}{' (held out)' * workload.held_out}"
        serving = "the kernel" if serves else "today's"
        if found is None:
            return [size, "not compared", *[""] * 7, serving]
        peer, alone = found.production, (found.alone_us, found.alone_baseline_us)
        return [
            size,
            found.surroundings or "none",
            f"{found.time_us:.3f}",
            f"{found.baseline_us:.3f}",
            f"{found.speedup:.3f}",
            "{:.3f} to {:.3f}".format(*found.interval),
            f"{peer.speedup:.3f} ({peer.peer})" if peer else "not measured",
            *("not measured" if one is None else f"{one:.3f}" for one in alone),
            serving,
        ]

    def _accuracy(self) -> str:
        """Say how far from float64 it was found to be."""
        dispatch, said = self._winners.dispatch, []
        for name, tolerance in self._spec.tolerances.items():
            said.append(
                f"`{name}`: |out - ref| <= {tolerance.absolute:g} + {tolerance.relative:g} |ref|"
            )
        variant = dispatch.table.kernels[0].variant
        worst: dict[str, float] = {}
        for trial in dispatch.trials:
            if trial.variant == variant and trial.correctness is not None:
                for name, error in trial.correctness.errors:
                    worst[name] = max(error, worst.get(name, 0.0))
        limits = (
            "Against the float64 reference every shape had to be within " + "; ".join(said) + "."
        )
        if not worst:
            return f"{limits} The session keeps no larger detail."
        errors = ", ".join(f"{name} {error:.3g}" for name, error in worst.items())
        return f"{limits} The largest error seen, in units of that: {errors}."
