"""KernelBench's `ModelNew` of a tuned problem: one file, with all that it needs but PyTorch."""

from __future__ import annotations

import ast
import io
import re
import zipfile
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib import resources
from pathlib import Path
from textwrap import wrap
from typing import Any

from tuner.device.problems import BenchProblem, ProblemModel, dtype_name, is_problem
from tuner.extensions.export.pytorch.package import RUNTIME, OperatorFiles
from tuner.extensions.export.sources import template
from tuner.model import TUNER_VERSION
from tuner.model.errors import InputError
from tuner.model.kernel import KernelSpec

# What `tune cut` calls the whole, beside the problems of its parts.
CUT = "cut.py"
# What in a problem's text may compute something else after `eval()`.
_HAS_MODE = re.compile(
    r"training|[bB]atch_?[nN]orm|[iI]nstance_?[nN]orm|[dD]ropout|[rR][rR]e[lL][uU]"
    r"|RNN|LSTM|GRU|Attention|Transformer"
)


def kernelbench_files(
    package: str, operators: Sequence[OperatorFiles], folder: str = "."
) -> dict[str, str | bytes]:
    """Return a module with `ModelNew` for each operator, by its name in the folder.

    Beside them is the whole of which they are parts, with all of them in it, where `tune cut` made
    their problems. Raises `InputError` for one whose reference is no KernelBench problem, or whose
    kernel takes or gives something else than the problem.
    """
    files: dict[str, str | bytes] = {}
    wholes: dict[Path, dict[Path, str]] = {}
    for operator in operators:
        problem = operator.winners.spec.reference
        whole, text = problem.with_name(CUT), _module(operator)
        files[f"{operator.described.kernel}.py"] = text
        if whole.is_file():
            wholes.setdefault(whole, {})[problem] = text
    if len(wholes) > 1:
        raise InputError(
            f"these are parts of {len(wholes)} cuts: {', '.join(map(str, wholes))}",
            remedy="export the parts of one at a time",
        )
    for whole, tuned in wholes.items():
        files[CUT] = _with_parts(whole, tuned)
    return files


def _with_parts(whole: Path, tuned: Mapping[Path, str]) -> str:
    """Put tuned parts into what `tune cut` wrote; the others stay PyTorch's."""
    text = whole.read_text("utf-8")
    where = next(
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_CUT_PARTS"
    )
    parts: dict[str, str] = ast.literal_eval(where.value)
    for problem, made in tuned.items():
        if parts.get(problem.stem) != problem.read_text("utf-8"):
            raise InputError(
                f"is not as {CUT} beside it has it: what it is part of may compute something else",
                path=problem,
                remedy="cut again (tune cut --force), and tune what changed",
            )
        parts[problem.stem] = made
    lines = text.split("\n")
    rows = [f'    "{name}": {_quoted(part)},' for name, part in parts.items()]
    lines[where.lineno - 1 : where.end_lineno] = ["_CUT_PARTS = {", *rows, "}"]
    return "\n".join(lines)


def _module(files: OperatorFiles) -> str:
    spec, measured = files.winners.spec, files.winners.measured
    if not is_problem(spec.reference):
        raise InputError(
            f"the reference of {spec.name} is no KernelBench problem: {spec.reference.name}",
            path=spec.path,
            remedy="choose another --format for it",
        )
    problem = BenchProblem(spec.reference)
    posed = _Posed(spec, problem.at({}))
    tuned = {}
    for entry in files.winners.dispatch.table.entries:
        there = _Posed(spec, problem.at(entry.workload.values))
        if there.constructor == posed.constructor:
            given = tuple(entry.workload.values[axis] for axis in files.given_axes)
            tuned[there.key] = (there.outputs, given)
    text = problem.path.read_text("utf-8")
    shipped = resources.files("tuner.extensions.runtime.pytorch")
    modules = {n: (shipped / n).read_text("utf-8") for n in (*RUNTIME, "posed.py")}
    modules |= {"table.py": str(files.files[f"{spec.name}_table.py"]), "problem.py": text}
    sources = {n: str(v) for n, v in files.files.items() if n.endswith(".cu")}
    cubins = {n: v for n, v in files.files.items() if isinstance(v, bytes)}
    digest = sha256(repr((modules, sorted(cubins.items()), tuned)).encode()).hexdigest()
    return template("kernelbench/model_new.py.j2").render(
        kernel=spec.name,
        problem=problem.path.name,
        version=TUNER_VERSION,
        device=measured.device,
        package=f"_tuned_{spec.name}_{digest[:10]}",
        modules={name.removesuffix(".py"): _quoted(code) for name, code in modules.items()},
        sources={name.rpartition("/")[2]: _quoted(code) for name, code in sources.items()},
        cubins=wrap(b64encode(_packed(cubins)).decode(), 96),
        constructor=posed.constructor,
        arrays=posed.arrays,
        tuned=tuned,
        has_mode=bool(_HAS_MODE.search(text)),
        returns=posed.returns,
        quick=not files.given_axes,
    )


class _Posed:
    """A problem of some sizes, as `ModelNew` meets it: see `runtime/pytorch/posed.py`."""

    def __init__(self, spec: KernelSpec, posed: ProblemModel) -> None:
        self._spec = spec
        inputs, model, found = posed.trace()
        weights, averages = posed.weights(model), posed.averages(model)
        several = isinstance(found, tuple | list)
        results = [*found] if several else [found]
        self.returns = type(found).__name__ if several else None
        self.constructor = _constructor(spec, posed)
        self.key = tuple(tuple(v.shape) if hasattr(v, "shape") else v for v in inputs.values())
        self.outputs = tuple(tuple(one.shape) for one in results)
        places: dict[str, tuple[int | str, Any]] = {}
        for place, (name, value) in enumerate(inputs.items()):
            if hasattr(value, "shape"):
                places[name] = place, value
        places |= {name: one for name, one in weights.items() if name not in averages}
        arrays = [
            argument
            for argument in spec.arguments
            if not argument.is_scalar and argument.role != "scratch"
        ]
        written = [array for array in arrays if array.role != "input"]
        if changed := [argument.name for argument in written if argument.role == "inout"]:
            raise self._refuse(f"the kernel writes into {', '.join(changed)}, which it reads")
        if unread := set(places) - {array.name for array in arrays}:
            raise self._refuse(f"the kernel does not take the problem's {min(unread)}")
        if unknown := {array.name for array in arrays if array.role == "input"} - set(places):
            raise self._refuse(f"the problem has no {min(unknown)}, which the kernel takes")
        tensors = {name: tensor for name, (_, tensor) in places.items()}
        tensors |= {
            argument.name: result for argument, result in zip(written, results, strict=True)
        }
        for array in arrays:
            if dtype_name(tensors[array.name]) != array.dtype:
                theirs = dtype_name(tensors[array.name])
                raise self._refuse(f"{array.name} is {array.dtype}, and {theirs} in the problem")
        self.arrays = tuple(places[a.name][0] if a.role == "input" else None for a in arrays)

    def _refuse(self, why: str) -> InputError:
        return InputError(why, path=self._spec.path, remedy="--format torch has no such limits")


def _constructor(spec: KernelSpec, posed: ProblemModel) -> tuple[list[Any], dict[str, Any]]:
    """Give what the problem makes its model with, all of which Python has a literal for."""
    positional, named = posed.constructor()
    given = [*positional], dict(named)
    try:
        if repr(ast.literal_eval(repr(given))) == repr(given):
            return given
    except (SyntaxError, ValueError):
        pass
    raise InputError(
        "the problem makes its model with something else than numbers, texts and lists of them",
        path=spec.reference,
        remedy="--format torch has no such limits",
    )


def _quoted(text: str) -> str:
    """Write a text so that it can be read where that is possible."""
    plain = "'''" not in text and "\\" not in text and not text.endswith("'")
    raw = "'''" not in text and not text.endswith(("'", "\\"))
    return f"'''{text}'''" if plain else f"r'''{text}'''" if raw else repr(text)


def _packed(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in sorted(files.items()):
            # With a date of its own, so that the same session gives the same file.
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return packed.getvalue()
