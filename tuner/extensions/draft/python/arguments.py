"""The arguments, axes and workloads of a launcher of Triton's or a kernel of Helion's."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import prod

from tuner.extensions.draft.guesses import GUESSED, LIKELY, SURE, Evidence, usual, usual_by_name
from tuner.extensions.draft.host_path import Number
from tuner.extensions.draft.host_values import INTEGERS
from tuner.extensions.draft.inference import DraftArgument, Inference
from tuner.extensions.draft.launches import Axes
from tuner.extensions.draft.python.accesses import PythonAccess, accesses
from tuner.extensions.draft.python.configs import guess_for, is_asked_for
from tuner.extensions.draft.python.literals import bindings
from tuner.extensions.draft.python.shapes import Shapes
from tuner.extensions.draft.python.source import (
    PythonLaunchSite,
    PythonSource,
    all_arguments,
    argument_of,
    calls_in,
    defaults_of,
    passed_to,
)
from tuner.extensions.draft.python.tensors import (
    Tensor,
    dtype_of,
    may_be_none,
    sizes_of,
    statements,
)
from tuner.source.facts import KernelParameter

_MOST_WORKLOADS = 4


@dataclass(frozen=True, slots=True)
class ScalarArgument:
    """A number that the launcher takes: the Python text of its value, and how sure it is."""

    name: str
    text: str
    said: Evidence


@dataclass(frozen=True, slots=True)
class HandedArgument:
    """What a launcher is handed and gives back.

    `outputs` maps each array that it makes to the expression that it returns for it; what is
    written in place is in `inference` alone.
    """

    inference: Inference
    scalars: tuple[ScalarArgument, ...]
    outputs: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def tensors(self) -> tuple[str, ...]:
        """The arrays that the launcher takes, in its order."""
        names = (argument.parameter.name for argument in self.inference.arguments)
        return tuple(name for name in names if name not in self.outputs)


def handed_to(
    source: PythonSource, host: ast.FunctionDef, sites: Sequence[PythonLaunchSite]
) -> HandedArgument:
    """Infer the arguments of the function that launches, or of a kernel of Helion itself.

    Raises `KernelError` where it takes no tensors.
    """
    return _Arguments(source, host, sites).infer_arguments()


class _Arguments:
    def __init__(
        self, source: PythonSource, host: ast.FunctionDef, sites: Sequence[PythonLaunchSite]
    ) -> None:
        self.source, self.host, self.sites = source, host, sites
        self.accesses: dict[str, PythonAccess] = {}
        self.guessed: list[str] = []
        launched = [s for s in source.sites if s.host is host and s.kernel in source.kernels]
        pairs = [(source.kernels[site.kernel], site) for site in launched]
        self.pairs = pairs
        done = {kernel.name: accesses(kernel, source.kernels) for kernel, _ in pairs}
        pointers = {
            node.id
            for kernel, site in pairs
            for name, node in passed_to(kernel.parameters, site.call).items()
            if name in done[kernel.name] and isinstance(node, ast.Name)
        }
        self.shapes = Shapes(host, source.literals, frozenset(pointers))
        for kernel, site in self.pairs:
            passed = passed_to(kernel.parameters, site.call)
            for name, node in passed.items():
                tensor = self.shapes.root(node)
                if tensor is None:
                    self.shapes.size(node, name)  # a dimension that only the kernel names
                elif name in done[kernel.name]:
                    access = done[kernel.name][name]
                    extent = passed.get(access.extent)
                    before = self.accesses.get(tensor.name, PythonAccess())
                    self.accesses[tensor.name] = before.with_(replace(access, extent=""))
                    text = None if extent is None else self.shapes.size(extent)
                    if tensor.shape is None and not tensor.dims and text is not None:
                        line = (*access.reads, *access.writes)[0]
                        said = Evidence(LIKELY, f"bounded in line {line} by {access.extent}")
                        self.shapes.claim(tensor, (text,), said)

    def infer_arguments(self) -> HandedArgument:
        scalars, outputs = self._scalars(), self._find_outputs()
        arguments = [name for name, one in self.shapes.tensors.items() if one.made is None]
        if not arguments:
            raise self.source.error(
                f"{self.host.name} takes no tensor that a draft can tell",
                self.host.lineno,
                "annotate its parameters: `x: torch.Tensor`",
            )
        names = [*arguments, *outputs]
        for name in names:
            tensor = self.shapes.tensors[name]
            if tensor.rank is None and [*tensor.dims] == [-1]:
                tensor.rank = 2
                tensor.said.append(Evidence(GUESSED, "taken as two-dimensional"))
            if tensor.rank is None or tensor.shape is not None:
                continue
            for place in range(tensor.rank):
                if place not in tensor.dims and place - tensor.rank not in tensor.dims:
                    tensor.dims[place] = self.shapes.axis(f"{name}_{place}", tensor.line)
                    self.guessed.append(tensor.dims[place])
                    text = f"nothing says dimension {place}"
                    tensor.said.append(Evidence(GUESSED, text))
        dtypes = self._dtypes(names)
        drafted = tuple(self._argument(name, dtypes[name], name in outputs) for name in names)
        axes = {name: name for name in self.shapes.axes}
        inference = Inference(Axes(axes), drafted, tuple(self._workloads([*axes])))
        optional = [
            name
            for name, default in defaults_of(self.host).items()
            if isinstance(default, ast.Constant) and default.value is None
        ]
        note = f"{', '.join(optional)}: None, as the launcher has it where nobody says"
        return HandedArgument(inference, scalars, outputs, (note,) if optional else ())

    def _scalars(self) -> tuple[ScalarArgument, ...]:
        defaults = defaults_of(self.host)
        nodes = (node for statement in self.host.body for node in ast.walk(statement))
        used = {node.id for node in nodes if isinstance(node, ast.Name)}
        arguments: list[ScalarArgument] = []
        for argument in all_arguments(self.host):
            # `out=None` is a scalar here: the launcher looks at it before it makes the array.
            if self._is_argument(argument.arg) or argument.arg == "ctx" or argument.arg not in used:
                continue
            default = defaults.get(argument.arg)
            if default is not None:
                said = Evidence(LIKELY, f"the default, line {default.lineno}")
                arguments.append(ScalarArgument(argument.arg, ast.unparse(default), said))
                continue
            arguments.append(self._guess(argument, [earlier.text for earlier in arguments]))
        return tuple(arguments)

    def _guess(self, one: ast.arg, besides: Sequence[str]) -> ScalarArgument:
        """Give what an argument without a default may be, by its annotation and name."""
        note = "" if one.annotation is None else ast.unparse(one.annotation)
        text, why = self._guess_text(one, note, besides)
        why = why or f"nothing says it, line {one.lineno}"
        return ScalarArgument(one.arg, text, Evidence(GUESSED, why))

    def _guess_text(self, one: ast.arg, note: str, besides: Sequence[str]) -> tuple[str, str]:
        for kernel, site in self.pairs:
            for name, node in passed_to(kernel.parameters, site.call).items():
                is_same = isinstance(node, ast.Name) and node.id == one.arg
                is_compiled_in = is_same and name in kernel.constexprs
                if is_compiled_in and is_asked_for(self.host, name, node):
                    return str(guess_for(name)), ""
        if may_be_none(one):
            return "None", f"it may be None, line {one.lineno}"
        if note == "bool":
            return "False", ""
        if note == "float" or (not note and usual_by_name(one.arg)):
            return usual(one.arg, "float32", besides), ""
        spread = (k.value for site in self.sites for k in site.call.keywords if k.arg is None)
        is_config = any(isinstance(node, ast.Name) and node.id == one.arg for node in spread)
        if note.startswith(("dict", "Dict", "Mapping")) or is_config:
            return "{}", "a caller's config, which no call here says"
        if "dtype" in note or one.arg.endswith("dtype"):
            return "source.torch.bfloat16", ""
        axis = self.shapes.axis(one.arg, one.lineno)
        self.shapes.sizes[one.arg] = axis
        return f'axes["{axis}"]', f"a size, by its name; line {one.lineno}"

    def _find_outputs(self) -> dict[str, str]:
        """Map the arrays that come back, and are not the launcher's own arguments, to texts."""
        found: dict[str, str] = {}
        for statement in statements(self.host.body):
            if not isinstance(statement, ast.Return) or statement.value is None:
                continue
            value = statement.value
            parts = value.elts if isinstance(value, ast.Tuple) else [value]
            for part in parts:
                whole = part
                while isinstance(whole, ast.Subscript):  # a part of an array is of that array
                    whole = whole.value
                tensor = self.shapes.root(whole)
                if tensor is None and not isinstance(part, ast.Constant):
                    name = "out" if len(parts) == 1 else f"out{len(found)}"
                    name = f"{name}_" if self._is_argument(name) else name
                    made = ast.Call(ast.Name("unknown"), [], [])
                    self.shapes.tensors.setdefault(name, Tensor(name, part.lineno, made))
                    found.setdefault(name, ast.unparse(part))
                elif tensor is not None and tensor.made is not None:
                    found.setdefault(tensor.name, ast.unparse(part))
        return found

    def _is_argument(self, name: str) -> bool:
        tensor = self.shapes.tensors.get(name)
        return tensor is not None and tensor.made is None

    def _dtypes(self, names: Sequence[str]) -> dict[str, tuple[str, Evidence]]:
        found: dict[str, tuple[str, Evidence]] = {}
        handed = self._handed_dtypes()
        for name in names:
            tensor = self.shapes.tensors[name]
            access = self.accesses.get(name, PythonAccess())
            if tensor.dtype is not None and tensor.dtype_said is not None:
                found[name] = (tensor.dtype, tensor.dtype_said)
            elif name in handed:
                found[name] = handed[name]
            elif access.is_index:
                text = f"int64: line {access.reads[0]} reads where other elements are"
                found[name] = ("int64", Evidence(GUESSED, text))
            elif (stored := dtype_of(access.stored_as)) is not None and access.stored_as:
                text = f"{stored} is stored in line {access.writes[0]}"
                found[name] = (stored, Evidence(LIKELY, text))
        floats = Counter(kind for kind, _ in found.values() if "float" in kind)
        most = floats.most_common(1)[0][0] if floats else ""
        calls = (call for kernel, _ in self.pairs for call in calls_in(kernel.node))
        casts = any(ast.unparse(call).endswith(".to(tl.float32)") for call in calls)
        for name in names:
            if name not in found:
                of = self.shapes.tensors[name].dtype_of
                known = found.get(of or "")
                if known is not None:
                    found[name] = (known[0], Evidence(known[1].certainty, f"the dtype of {of}"))
                elif casts and most in ("", "float32"):
                    text = "bfloat16: the kernel computes in float32"
                    found[name] = "bfloat16", Evidence(GUESSED, text)
                else:
                    text = f"{most} as other arrays" if most else "float32: nothing says the dtype"
                    found[name] = most or "float32", Evidence(GUESSED, text)
        return found

    def _argument(self, name: str, kind: tuple[str, Evidence], is_made: bool) -> DraftArgument:
        tensor, access = self.shapes.tensors[name], self.accesses.get(name, PythonAccess())
        dtype, dtype_said = kind
        role, said = self._role(tensor, access, is_made)
        kept = [
            e for n, e in enumerate(tensor.said) if e.text not in {o.text for o in tensor.said[:n]}
        ]
        argument = DraftArgument(
            KernelParameter(name, dtype, 1, role == "input", dtype, tensor.line),
            dtype,
            role,
            tensor.shape,
            evidence=(*kept[-2:], *dict.fromkeys((said, dtype_said))),
        )
        if access.is_index and role == "input" and "int" in dtype:
            rows = [axis for axis in self.guessed if axis.endswith("_0")]
            below = rows[0] if len(rows) == 1 else self.shapes.axis(f"{name}_below", tensor.line)
            text = "what it points into has so many"
            more = (*argument.evidence, Evidence(GUESSED, text))
            return replace(argument, fill=f"indices({below})", evidence=more)
        if role in ("input", "inout") and dtype in INTEGERS:
            few = Evidence(GUESSED, "few, for nothing says what they are")
            return replace(argument, fill="uniform(0, 8)", evidence=(*argument.evidence, few))
        return argument

    def _role(self, tensor: Tensor, access: PythonAccess, is_made: bool) -> tuple[str, Evidence]:
        if is_made:
            line = tensor.line
            return "output", Evidence(SURE, f"made and returned, line {line}")
        for kernel, site in self.pairs:
            passed, autotune = passed_to(kernel.parameters, site.call), kernel.autotune
            names = argument_of(autotune, "restore_value") if autotune else None
            restored = self.source.literals.try_evaluate(names) or ()
            roots = [self.shapes.root(passed[name]) for name in restored if name in passed]
            if names is not None and tensor in roots:
                return "inout", Evidence(SURE, f"restore_value, line {names.lineno}")
        if access.writes and access.reads:
            return "inout", Evidence(LIKELY, f"read and written, line {access.writes[0]}")
        if access.writes:
            return "output", Evidence(LIKELY, f"written, line {access.writes[0]}")
        if access.reads:
            return "input", Evidence(SURE, f"read, line {access.reads[0]}")
        for node in ast.walk(self.host):  # a kernel of Helion writes as Python does
            if isinstance(node, ast.Assign | ast.AugAssign):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                written = target.value if isinstance(target, ast.Subscript) else None
                if isinstance(written, ast.Name) and written.id == tensor.name:
                    return "output", Evidence(LIKELY, f"written, line {node.lineno}")
        return "input", Evidence(LIKELY, f"a parameter, line {tensor.line}")

    def _calls(self) -> Iterator[tuple[ast.Call, Mapping[str, ast.expr]]]:
        """Find calls of the launcher elsewhere in the file, with what names are there."""
        scopes: list[tuple[ast.AST, dict[str, ast.expr]]] = []
        for node in (self.source.tree, *ast.walk(self.source.tree)):
            if isinstance(node, ast.Module | ast.FunctionDef) and node is not self.host:
                pairs = map(bindings, statements(node.body))
                scopes.append((node, dict(chain.from_iterable(pairs))))
        called = {self.host.name}
        if self.host.name == "forward":  # of autograd's functions
            applied = (pair for node in self.source.tree.body for pair in bindings(node))
            called |= {"apply"} | {n for n, v in applied if ast.unparse(v).endswith(".apply")}
        for scope, bound in scopes:
            for call in calls_in(scope):
                if isinstance(call.func, ast.Name | ast.Attribute):
                    name = call.func.id if isinstance(call.func, ast.Name) else call.func.attr
                    if name in called:
                        yield call, bound

    def _tensor_calls(
        self, call: ast.Call, bound: Mapping[str, ast.expr]
    ) -> Iterator[tuple[str, ast.Call, list[ast.expr]]]:
        names = [argument.arg for argument in all_arguments(self.host) if argument.arg != "ctx"]
        for name, node in passed_to(names, call).items():
            value = bound.get(node.id) if isinstance(node, ast.Name) else node
            sizes = sizes_of(value) if value is not None else None
            if sizes is not None and name in self.shapes.tensors:
                yield name, *sizes

    def _handed_dtypes(self) -> dict[str, tuple[str, Evidence]]:
        found: dict[str, tuple[str, Evidence]] = {}
        for call, bound in self._calls():
            for name, made, _ in self._tensor_calls(call, bound):
                node = argument_of(made, "dtype")
                how = ast.unparse(made.func).rpartition(".")[2]
                kind = dtype_of(ast.unparse(node)) if node is not None else None
                if node is None:
                    kind = "int64" if how in ("randint", "randperm", "arange") else "float32"
                if kind is not None:
                    said = Evidence(LIKELY, f"{how}, line {made.lineno}")
                    found.setdefault(name, (kind, said))
        return found

    def _workloads(self, axes: Sequence[str]) -> Iterator[Mapping[str, Number]]:
        """Find sizes in the calls of the launcher, else in Triton's own benchmarks."""
        found: list[Mapping[str, Number]] = []
        for call, bound in self._calls():
            names: dict[str, object] = {}
            for name, node in bound.items():
                if (value := self.source.literals.try_evaluate(node, names)) is not None:
                    names[name] = value
            sizes: dict[str, Number] = {}
            for name, made, each in self._tensor_calls(call, bound):
                shape = self.shapes.tensors[name].shape or ()
                values = [self.source.literals.try_evaluate(node, names) for node in each]
                if len(values) == 1 and isinstance(values[0], tuple | list):
                    values = [*values[0]]
                for axis, value in zip(shape, _fold(values, len(shape)), strict=False):
                    if axis in axes and type(value) is int and value > 0:
                        sizes.setdefault(axis, Number(value, made.lineno))
            if len(sizes) == len(axes):
                found.append({axis: sizes[axis] for axis in axes})
        found += self._benchmark_sizes(axes)
        distinct = {tuple(n.value for n in one.values()): one for one in reversed(found)}
        yield from [*distinct.values()][::-1][:_MOST_WORKLOADS]

    def _benchmark_sizes(self, axes: Sequence[str]) -> Iterator[Mapping[str, Number]]:
        for node in calls_in(self.source.tree):
            if not ast.unparse(node.func).endswith(".Benchmark"):
                continue
            named = passed_to((), node).items()
            said = {name: self.source.literals.try_evaluate(value) for name, value in named}
            names, values = said.get("x_names"), said.get("x_vals")
            if not isinstance(names, list) or not isinstance(values, list | tuple) or not values:
                continue
            chosen = [values[0], values[len(values) // 2], values[-1]]
            for value in chosen:
                each = value if isinstance(value, list | tuple) else [value] * len(names)
                sizes = {**(said.get("args") or {}), **dict(zip(names, each, strict=False))}
                lowered = {str(name).lower(): size for name, size in sizes.items()}
                known = {axis: lowered.get(axis.lower()) for axis in axes}
                if all(type(size) is int for size in known.values()):
                    numbers = {axis: int(size or 1) for axis, size in known.items()}
                    yield {axis: Number(size, node.lineno) for axis, size in numbers.items()}


def _fold(sizes: Sequence[object], rank: int) -> Sequence[object]:
    # of a tensor that is taken to have fewer dimensions the first ones are one
    further = len(sizes) - rank + 1
    first = [size for size in sizes[:further] if type(size) is int]
    if rank < 1 or further < 2:
        return sizes
    return [prod(first) if len(first) == further else None, *sizes[further:]]
