"""A cut as Python: a problem for each part, and the model that puts them together."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import combinations_with_replacement
from typing import Any

from tuner.extensions.draft.problems.cut import Cut
from tuner.extensions.draft.problems.graph import Size, Trace, is_constant
from tuner.extensions.draft.space import render
from tuner.model import TUNER_VERSION

# What FX adds to a line to free what is read for the last time.
_FREED = re.compile(r";  [\w =]+ = None$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a cut's text says besides its graph.

    `knobs` are the sizes that may change, in the order of `Size`; `drawn` how a part's input is
    drawn, by part and name, with `{shape}` for its extents.
    """

    problem: str
    text: str
    made: str
    knobs: tuple[str, ...]
    drawn: Mapping[tuple[str, str], str]


class _Text:
    """What FX writes as it stands."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class _Sizes:
    """The module's constants of a part: sizes of its inputs that sizes of the problem change."""

    def __init__(self, extents: Sequence[int], knobs: Sequence[str]) -> None:
        self.named: dict[tuple[int, ...], str] = {}
        for values in dict.fromkeys(
            extent.values for extent in extents if isinstance(extent, Size)
        ):
            moved = [k for k, value in enumerate(values[1:]) if value != values[0]]
            name = "_".join(knobs[k] for k in moved)
            exact = len(moved) == 1 and values[moved[0] + 1] == 2 * values[0]
            wish = name if exact else f"{name}_{values[0]}"
            count = [*self.named.values()].count(wish)
            self.named[values] = wish if not count else f"{wish}_{len(self.named)}"

    def write(self, value: int) -> str:
        """Write a number over the constants where it is one, a product, a quotient or a sum."""
        if not isinstance(value, Size) or value.values in self.named:
            return self.named[value.values] if isinstance(value, Size) else repr(value)
        wanted = value.values
        for (some, name), (others, last) in combinations_with_replacement(self.named.items(), 2):
            if all(a * b == c for a, b, c in zip(some, others, wanted, strict=True)):
                return f"{name} * {last}"
        for some, name in self.named.items():
            pairs = [*zip(some, wanted, strict=True)]
            first, found = pairs[0]
            if all(found * a == first * c for a, c in pairs) and found % first == 0:
                return f"{name} * {found // first}"
            if all(found * a == first * c for a, c in pairs) and first % found == 0:
                return f"{name} // {first // found}"
            if all(c - a == found - first for a, c in pairs):
                return f"{name} {'+' if found > first else '-'} {abs(found - first)}"
        return repr(int(value))


def part_text(cut: Cut, name: str, facts: Facts, *, alike: bool = False) -> str:
    """Write a part as a KernelBench problem; `alike` as all are that compute the same."""
    inputs = inputs_of(cut.parts[name])
    sizes = _Sizes([one for node in inputs for one in node.meta["shape"]], facts.knobs)

    def wish(node: Any) -> str:
        source = node.meta.get("source") if node in inputs else None
        own = source.target.rpartition(".")[2] if source else re.sub(r"_\d+$", "", node.name)
        return "x" if alike and node in inputs else own

    taken = [*sizes.named.values()]
    forward, names = _write(cut.parts[name], wish, {}, sizes.write, taken)
    drawn, said = [], []
    for node in inputs:
        shape = ", ".join(map(sizes.write, node.meta["shape"])) or "()"
        how = f"{node.meta['val'].dtype}({{shape}})" if alike else facts.drawn[name, node.name]
        drawn.append(f"        {how.format(shape=shape)},")
        source = node.meta.get("source")
        what = f"{source.target}, {source.kind}" if source else node.name
        said.append(f"{names[node]}: {what}")
    unpack = "import base64\nimport zlib\n\n" if any("zlib." in one for one in drawn) else ""
    endless = "from math import inf, nan\n\n" if re.search(r"\b(inf|nan)\b", forward) else ""
    constants = "".join(f"\n{n} = {values[0]}" for values, n in sizes.named.items())
    return render(
        "problems/part.py.j2",
        part="" if alike else name,
        problem=facts.problem,
        version=TUNER_VERSION,
        said="" if alike else "\n".join(said),
        imports=f"{unpack}{endless}import torch",
        sizes=f"{constants}\n" if constants else "",
        forward=textwrap.indent(forward, "    "),
        drawn="\n".join(drawn),
    )


def whole_text(
    cut: Cut, trace: Trace, facts: Facts, files: Mapping[str, str], uses: Mapping[str, str]
) -> str:
    """Write `ModelNew`: `files` are the parts' texts, `uses` tells whose of them a part is."""
    weights = {}
    for node in cut.graph.nodes:
        source = node.meta.get("source") if node.op == "placeholder" else None
        if source and source.kind in ("parameter", "buffer"):
            path = "self"
            for one in source.target.split("."):
                path += f".{one}" if one.isidentifier() else f'._modules["{one}"]'
            weights[node] = path
    cut.graph.output_node().args = (trace.nest(cut.graph.output_node().args[0]),)
    for node in cut.graph.nodes:
        node.target = uses[node.target] if node.op == "call_module" else node.target
    forward, _ = _write(
        cut.graph,
        lambda node: str(node.meta.get("name", node.target)),
        weights,
        lambda n: repr(int(n)),
    )
    forward = forward.replace("def forward(", "def _cut_forward(", 1)
    shapes = [
        f"({tuple(one.shape)}, {one.dtype})" if hasattr(one, "shape") else repr(one)
        for one in trace.inputs.values()
    ]
    return render(
        "problems/cut.py.j2",
        problem=facts.problem,
        version=TUNER_VERSION,
        count=f"stand {len(files)} parts" if len(files) != 1 else "stands one part",
        text=quote_text(facts.text),
        parts="\n".join(f'    "{name}": {quote_text(text)},' for name, text in files.items()),
        digest=sha256(repr(files).encode()).hexdigest()[:10],
        forward=re.sub(r"self\.(\w+)\(", r'_cut_parts["\1"](', forward),
        shapes=f"[{', '.join(shapes)}]",
        made=repr(facts.made),
        has_mode=trace.has_mode or "training" in facts.text,
    )


def _write(
    graph: Any,
    wish: Callable[[Any], str],
    known: Mapping[Any, str],
    number: Callable[[int], str],
    taken: Sequence[str] = (),
) -> tuple[str, dict[Any, str]]:
    """Let FX write a graph as a function, its nodes by the names wished for; return these too.

    `known` are texts of nodes that stand in no argument, `taken` names of the module's.
    """
    from torch import device
    from torch.fx import Graph, Node
    from torch.fx.node import map_aggregate

    new = Graph()
    made: dict[Any, Any] = {node: _Text(text) for node, text in known.items()}
    for name in (*taken, "inputs", "inf", "nan"):
        new._graph_namespace.create_name(name, None)
    inputs, used = [node for node in inputs_of(graph) if node not in known], Counter[str](taken)
    for node in inputs:
        name = wish(node)
        used[name] += 1
        made[node] = new.placeholder(name if used[name] == 1 else f"{name}_{used[name]}")
    place = _Text(f"{next(iter(made.values()), 'torch.empty(0)')}.device")
    if inputs:
        place = _Text(f"{made[inputs[0]]}.device")

    def read(value: Any) -> Any:
        if isinstance(value, Node):
            return made[value]
        if isinstance(value, device):
            return place
        return _Text(number(value)) if isinstance(value, Size) else value

    for node in graph.nodes:
        if node.op == "placeholder" and node not in made:
            made[node] = _Text(f"torch.tensor({node.meta['source'].values}, device={place})")
        elif node.op.startswith("call_"):
            named = {key: value for key, value in node.kwargs.items() if key != "pin_memory"}
            given = map_aggregate(node.args, read), map_aggregate(named, read)
            made[node] = new.create_node(node.op, node.target, *given, name=wish(node))
    new.output(map_aggregate(graph.output_node().args[0], read))
    text = _FREED.sub("", new.python_code("self").src).strip()
    return text, {node: str(one) for node, one in made.items()}


def inputs_of(graph: Any) -> list[Any]:
    """Give what a graph is called with: all but the constants of `forward`'s text."""
    return [n for n in graph.nodes if n.op == "placeholder" and not is_constant(n)]


def quote_text(text: str) -> str:
    """Write a text so that it can be read where that is possible."""
    plain = "'''" not in text and "\\" not in text and not text.endswith("'")
    return f"'''{text}'''" if plain else repr(text)
