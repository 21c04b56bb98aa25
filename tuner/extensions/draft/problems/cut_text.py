"""A cut as Python: a problem for each part, and the model that puts them together."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

from tuner.extensions.draft.problems.cut import Cut, Part, references
from tuner.extensions.draft.problems.graph import Graph, Literal, Node, Ref, Size, Source
from tuner.model import TUNER_VERSION

_OWN_NAMES = frozenset({"self", "torch", "aten", "inputs"})
PART = '''"""Part `{part}` of {problem}, cut by tune {version}: a problem of its own.

{said}
"""

{imports}

aten = torch.ops.aten
{sizes}

class Model(torch.nn.Module):
    def forward(self, {arguments}):
{body}


def get_inputs():
    return [
{drawn}
    ]


def get_init_inputs():
    return []
'''
WHOLE = '''"""`ModelNew` of {problem}, cut by tune {version}.

PyTorch computes what its libraries are best at. {count} stand here as texts: as they were cut, or
as `tune export --format kernelbench` wrote them with their tuned kernels.
"""

import inspect
import sys
import types
import warnings

import torch

_CUT_PROBLEM = {text}

_CUT_PARTS = {{
{parts}
}}


def _cut_module(name, text):
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, f"<{{name}}>", "exec"), module.__dict__)
    return module


def _cut_part(name):
    module = _cut_module(f"_cut_{digest}_{{name}}", _CUT_PARTS[name])
    return getattr(module, "ModelNew", None) or module.Model


_cut_problem = _cut_module("_cut_{digest}", _CUT_PROBLEM)
_cut_parts = {{name: _cut_part(name)() for name in _CUT_PARTS}}


def _cut_forward(self, {arguments}):
    """Compute what the problem's `forward` does, with these weights."""
    aten, parts = torch.ops.aten, _cut_parts
{body}


def _cut_shapes(inputs):
    return [(tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else x for x in inputs]


class ModelNew(_cut_problem.Model):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        bound = inspect.signature(super().__init__).bind(*arguments, **named)
        self._cut_made, self._cut_training = repr(bound.arguments), self.training

    def forward(self, *inputs, **named):
        if torch.compiler.is_compiling():
            return super().forward(*inputs, **named)
        graded = torch.is_grad_enabled()
        if named or _cut_shapes(inputs) != {shapes}:
            why = "not cut for these inputs"
        elif self._cut_made != {made!r}:
            why = "made with other arguments than the problem's"
        elif {has_mode} and self.training is not self._cut_training:
            why = f"training is {{self.training}}"
        elif graded and any(getattr(x, "requires_grad", False) for x in inputs):
            why = "an input wants a derivative"
        else:
            with torch.no_grad():
                return _cut_forward(self, *inputs)
        warnings.warn(f"{problem}: {{why}}: PyTorch computes it", stacklevel=2)
        return super().forward(*inputs, **named)
'''


@dataclass(frozen=True, slots=True)
class Facts:
    """What a cut's text says besides its graph.

    `knobs` are the sizes that may change, in the order of `Size`; `drawn` how a part's input is
    drawn, by its name in the graph, with `{shape}` for its extents.
    """

    problem: str
    text: str
    made: str
    arguments: tuple[str, ...]
    shapes: str
    knobs: tuple[str, ...]
    drawn: Mapping[str, str]


class _Names:
    """Names of one text: each once, none of Python's; `anew` numbers them in the text's order."""

    def __init__(self, taken: Sequence[str] = (), *, anew: bool = False) -> None:
        self._taken, self.known, self._anew = {*_OWN_NAMES, *taken}, dict[str, str](), anew

    def add(self, name: str, wish: str) -> str:
        wish = re.sub(r"_\d+$", "", wish) if self._anew else wish
        wish = re.sub(r"\W", "_", wish).strip("_") or "x"
        wish = f"{wish}_" if keyword.iskeyword(wish) else wish
        found, count = wish, 1
        while found in self._taken:
            count += 1
            found = f"{wish}_{count}"
        self._taken.add(found)
        self.known[name] = found
        return found


class _Sizes:
    """The module's constants of a part: sizes of its inputs that sizes of the problem change."""

    def __init__(self, cut: Cut, part: Part, knobs: Sequence[str]) -> None:
        tensors = cut.tensors()
        shapes = [extent for name in part.inputs for extent in tensors[name].shape]
        self.named: dict[Size, str] = {}
        for size in dict.fromkeys(one for one in shapes if isinstance(one, Size)):
            moved = [k for k, value in enumerate(size.values[1:]) if value != size.values[0]]
            own = [knobs[k] for k in moved]
            exact = len(own) == 1 and size.values[moved[0] + 1] == 2 * size.values[0]
            wish = own[0] if exact else f"{'_'.join(own)}_{size.values[0]}"
            self.named[size] = wish if wish not in self.named.values() else f"{wish}_{len(own)}"

    def write(self, value: int | Size) -> str:
        """Write a number over the constants where it is one, a product, a quotient or a sum."""
        if isinstance(value, int):
            return str(value)
        if value in self.named:
            return self.named[value]
        wanted = value.values
        for (size, name), (other, last) in combinations_with_replacement(self.named.items(), 2):
            if all(a * b == c for a, b, c in zip(size.values, other.values, wanted, strict=True)):
                return f"{name} * {last}"
        for size, name in self.named.items():
            pairs = [*zip(size.values, wanted, strict=True)]
            first, found = pairs[0]
            if all(found * a == first * c for a, c in pairs):
                if found % first == 0:
                    return f"{name} * {found // first}"
                if first % found == 0:
                    return f"{name} // {first // found}"
            if all(c - a == found - first for a, c in pairs):
                return f"{name} {'+' if found > first else '-'} {abs(found - first)}"
        return str(wanted[0])


def part_text(cut: Cut, part: Part, facts: Facts, *, alike: bool = False) -> str:
    """Write a part as a KernelBench problem; `alike` as all are that compute the same."""
    sizes, tensors = _Sizes(cut, part, facts.knobs), cut.tensors()
    names = _Names([*sizes.named.values()], anew=True)
    drawn, said = [], []
    for one in part.inputs:
        source = cut.source_of(one)
        wish = source.target.rpartition(".")[2] if source else one
        names.add(one, "x" if alike else wish)
        shape = ", ".join(map(sizes.write, tensors[one].shape)) or "()"
        how = tensors[one].dtype + "({shape})" if alike else facts.drawn[one]
        drawn.append(how.format(shape=shape))
        said.append(f"{names.known[one]}: {f'{source.target}, {source.kind}' if source else one}")
    arguments = [names.known[one] for one in part.inputs]
    device = f"{arguments[0]}.device" if arguments else "torch.get_default_device()"
    lines = [*_calls(cut.graph, part.nodes, names, sizes, device)]
    lines.append(f"return {', '.join(names.known[one] for one in part.outputs)}")
    unpack = "import base64\nimport zlib\n\n" if any("zlib." in one for one in drawn) else ""
    return PART.format(
        part="" if alike else part.name,
        problem=facts.problem,
        version=TUNER_VERSION,
        said="" if alike else "\n".join(said),
        imports=f"{unpack}import torch",
        sizes="".join(f"{name} = {size.values[0]}\n" for size, name in sizes.named.items()),
        arguments=", ".join(arguments),
        body="\n".join(f"        {line}" for line in lines),
        drawn="\n".join(f"        {line}," for line in drawn),
    )


def _calls(
    graph: Graph,
    nodes: Sequence[Node],
    names: _Names,
    sizes: _Sizes | None,
    device: str,
) -> Iterator[str]:
    for node in nodes:
        for one in node.reads:
            source = graph.sources.get(one)
            if source is not None and source.kind == "constant" and one not in names.known:
                yield f"{names.add(one, 'constant')} = {_constant(source, device)}"
        yield _call(node, names, sizes, device)


def _constant(source: Source, device: str) -> str:
    return f"torch.tensor({source.values}, dtype={source.tensor.dtype}, device={device})"


def _call(node: Node, names: _Names, sizes: _Sizes | None, device: str) -> str:
    def text(value: Any) -> str:
        if isinstance(value, Ref):
            return names.known[value.name]
        if isinstance(value, Size):
            return sizes.write(value) if sizes else str(value.values[0])
        if isinstance(value, Literal):
            return device if value.text == "device" else value.text
        if isinstance(value, list):
            return f"[{', '.join(map(text, value))}]"
        if isinstance(value, tuple):
            return f"({''.join(f'{text(one)}, ' for one in value).strip()})"
        if isinstance(value, float) and repr(value) in ("inf", "-inf", "nan"):
            return f'float("{value!r}")'
        return repr(value)

    if node.call == "getitem":
        called = f"{text(node.args[0])}[{node.args[1]}]"
    else:
        given = [*map(text, node.args), *(f"{n}={text(one)}" for n, one in node.named.items())]
        called = f"{node.call}({', '.join(given)})"
    return f"{names.add(node.name, node.name)} = {called}"


def whole_text(
    cut: Cut, facts: Facts, files: Mapping[str, str], problems: Mapping[str, str], digest: str
) -> str:
    """Write `ModelNew`: `files` are the parts' texts, `problems` which of them a part is."""
    names, tensors = _Names([*facts.arguments, "parts"]), cut.tensors()
    lines = []
    first = ""
    for name, source in cut.graph.sources.items():
        if source.kind == "input":
            names.known[name] = source.target
            first = first or f"{source.target}.device"
    device = first or "next(self.parameters()).device"
    for name, source in cut.graph.sources.items():
        if source.kind in ("parameter", "buffer"):
            path = "self"
            for one in source.target.split("."):
                path += f".{one}" if one.isidentifier() else f'._modules["{one}"]'
            names.known[name] = path
        elif source.kind == "constant":
            lines.append(f"{names.add(name, 'constant')} = {_constant(source, device)}")
    for step in cut.steps:
        if isinstance(step, Node):
            lines.append(_call(step, names, None, device))
            continue
        given = [
            f"{names.known[one]}{'' if tensors[one].contiguous else '.contiguous()'}"
            for one in step.inputs
        ]
        called = f'parts["{problems[step.name]}"]({", ".join(given)})'
        wanted = ", ".join(names.add(one, one) for one in step.outputs)
        lines.append(f"{wanted} = {called}")
    lines.append(f"return {_returned(cut.graph.returns, names)}")
    count = len(files)
    return WHOLE.format(
        problem=facts.problem,
        version=TUNER_VERSION,
        count=f"{count} parts" if count != 1 else "One part",
        text=quote_text(facts.text),
        parts="\n".join(f'    "{name}": {quote_text(text)},' for name, text in files.items()),
        digest=digest,
        arguments=", ".join(facts.arguments),
        body="\n".join(f"    {line}" for line in lines),
        shapes=facts.shapes,
        made=facts.made,
        has_mode=cut.graph.has_mode or "training" in facts.text,
    )


def _returned(value: Any, names: _Names) -> str:
    if isinstance(value, tuple):
        return f"({''.join(f'{_returned(one, names)}, ' for one in value).strip()})"
    if isinstance(value, list):
        return f"[{', '.join(_returned(one, names) for one in value)}]"
    if isinstance(value, dict):
        inner = (f"{key!r}: {_returned(one, names)}" for key, one in value.items())
        return f"{{{', '.join(inner)}}}"
    return ", ".join(names.known[one] for one in references(value)) or repr(value)


def quote_text(text: str) -> str:
    """Write a text so that it can be read where that is possible."""
    plain = "'''" not in text and "\\" not in text and not text.endswith("'")
    return f"'''{text}'''" if plain else repr(text)
