"""Template arguments that no launch says: what an expert would take first, and what else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from tuner.extensions.draft.extract.deduction import CType, arguments_of
from tuner.extensions.draft.guesses import NAMES, enumerators
from tuner.extensions.draft.meaning import snake_case
from tuner.source.facts import KernelFunction, LineIndex, SourceFile, Symbol, TemplateParameter
from tuner.source.host import is_marked
from tuner.source.kernels import dtype_of, read_template
from tuner.source.syntax import listed

_DATA = ("__nv_bfloat16", "__half", "float")
_ELEMENTS = (
    ("counting", ("int", "int64_t")),
    ("quantized", ("__nv_fp8_e4m3", "int8_t")),
    ("packed", ("__nv_bfloat162", "__half2", "float2")),
)
_NAMED = {kind: re.compile(names) for kind, names in NAMES["template"].items()}
VECTOR = _NAMED["vector"]
# bytes of one load, which the element's size divides
_LOADS = ("16 bytes", "8 bytes", "4 bytes", "1")
_MOST = 8


@dataclass(frozen=True, slots=True)
class Guesses:
    """What could stand for the template parameters of a source; `functions` are all of it."""

    source: SourceFile
    functions: tuple[KernelFunction, ...]

    def of(self, parameter: TemplateParameter, template: KernelFunction) -> tuple[str, ...]:
        """List what a parameter of a template may be, the likeliest first, nothing if unknown.

        Of an access `16 bytes` stands for as many elements as that is.
        """
        if "..." in parameter.kind:
            return ()
        if parameter.is_type:
            return self._types(parameter.name, template)
        if parameter.kind.startswith("template"):
            return self._class_templates(parameter, template)
        if "(" in parameter.kind:
            return tuple(self._functions(parameter.kind))
        if parameter.kind == "bool":
            return ("false", "true")
        if names := enumerators(self.source.masked, parameter.kind, of_any_size=True):
            return tuple(f"{parameter.kind}::{name}" for name in names)
        if parameter.kind != "auto" and dtype_of(parameter.kind, self.source.aliases) is None:
            return ()
        if VECTOR.fullmatch(parameter.name) and "PER_THREAD" not in parameter.name.upper():
            return _LOADS
        name = snake_case(parameter.name).upper()
        known = NAMES["instances"]
        return next(tuple(texts) for names, texts in known if re.fullmatch(names, name))

    def _types(self, name: str, template: KernelFunction) -> tuple[str, ...]:
        is_element = any(p.pointers and p.c_type == name for p in template.parameters)
        values = [p.name for p in template.parameters if not p.pointers and p.c_type == name]
        if not is_element:
            members = self._find_members(name, template, values)
            if members:
                return tuple(self._classes(members))
        for kind, texts in _ELEMENTS:
            if _NAMED[kind].fullmatch(name):
                return texts
        if values or (_NAMED["computing"].fullmatch(name) and not is_element):
            return ("float", "double")
        return _DATA

    def _find_members(self, name: str, template: KernelFunction, values: Sequence[str]) -> set[str]:
        # what code asks of a type that is none of data: `Op::apply`, `Op()(x)`, `op(x)`
        text = self.source.masked[slice(*template.span)]
        own = rf"\b{name}\s*(?:<[^;{{}}()]*>)?"
        found = {match[1] for match in re.finditer(rf"{own}\s*::\s*(?:template\s+)?(\w+)", text)}
        names = [m[1] for m in re.finditer(rf"{own}\s+(\w+)\s*(?=[;({{])", text)]
        called = "|".join([*values, *names])
        if re.search(rf"{own}\s*(?:\(\s*\)|\{{\s*\}})\s*\(", text) or (
            called and re.search(rf"(?<![\w.>])(?:{called})\s*\((?!\s*\))", text[text.find("{") :])
        ):
            found.add("operator()")
        return found

    def _classes(self, members: set[str]) -> Iterator[str]:
        for definition in self._with_members(members):
            parameters = self._template_of(definition)
            if all(parameter.is_type for parameter in parameters):
                own = ", ".join([_DATA[0]] * len(parameters))
                yield definition.name + (f"<{own}>" if own else "")

    def _class_templates(
        self, parameter: TemplateParameter, template: KernelFunction
    ) -> tuple[str, ...]:
        taken = len(listed(parameter.kind, parameter.kind.index("<"))[0])
        members = self._find_members(parameter.name, template, ())
        symbols = self._with_members(members)
        return tuple(d.name for d in symbols if len(self._template_of(d)) == taken)

    def _with_members(self, members: set[str]) -> Iterator[Symbol]:
        for definition in self.source.definitions:
            if definition.kind == "class":
                text = re.sub(r"\s+", "", self.source.masked[slice(*definition.span)])
                if "{" in text and all(member in text for member in members):
                    yield definition

    def _template_of(self, definition: Symbol) -> tuple[TemplateParameter, ...]:
        text = self.source.masked[slice(*definition.span)]
        return read_template(text, 0, LineIndex(text))[0]

    def _functions(self, kind: str) -> Iterator[str]:
        wanted, _ = listed(kind, kind.rindex("("))
        types = [CType.of(text) for text in wanted]
        for function in self.functions:
            head = self.source.masked[function.span[0] : function.body[0]]
            if len(function.parameters) != len(types) or not is_marked(head):
                continue
            names = [parameter.name for parameter in function.template]
            known = arguments_of(function, (), types)
            own = [CType(known.get(p.c_type, p.c_type), p.pointers) for p in function.parameters]
            if own == types and "__global__" not in head and all(n in known for n in names):
                yield function.name + (f"<{', '.join(known[n] for n in names)}>" if names else "")


def alternatives(lists: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Choose one text for each name, the first ones first; equal lists go together."""
    groups = list(dict.fromkeys(tuple(texts) for texts in lists.values()))
    places: list[tuple[int, ...]] = []
    waiting, seen = [(0, (0,) * len(groups))], set[tuple[int, ...]]()
    while waiting and len(places) < _MOST and all(groups):
        total, chosen = heappop(waiting)
        places.append(chosen)
        for at, group in enumerate(groups):
            further = (*chosen[:at], chosen[at] + 1, *chosen[at + 1 :])
            if further[at] < len(group) and further not in seen:
                seen.add(further)
                heappush(waiting, (total + 1, further))
    return [
        {name: texts[chosen[groups.index(tuple(texts))]] for name, texts in lists.items()}
        for chosen in places
    ]


def in_elements(text: str, element_bytes: int) -> str:
    """Write a number of bytes as one of elements."""
    number, _, unit = text.partition(" ")
    return str(max(int(number) // element_bytes, 1)) if unit == "bytes" else text
