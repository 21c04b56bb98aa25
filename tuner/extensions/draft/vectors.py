"""Where a thread may take neighbouring elements at once, and the code with which it does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.source.facts import Span
from tuner.source.host import Edit


@dataclass(frozen=True, slots=True)
class VectorSite:
    """Code that runs once for each element: `body`, of the variable that `declared` names.

    `header` is where else the variable is named before the body; `scaled` are the texts that count
    in elements.
    """

    variable: str
    c_type: str
    declared: Span
    header: Span
    scaled: tuple[Span, ...]
    body: Span
    braced: bool
    limit: str
    over_grid: bool
    guarded: bool


@dataclass(frozen=True, slots=True)
class Pack:
    """Elements of one array that are loaded or stored at once, wherever `spans` name one."""

    name: str
    c_type: str
    element: str
    spans: tuple[Span, ...]
    reads: bool
    writes: bool
    bytes_each: int
    multiples: tuple[str, ...]
    is_once: bool


# with names for a vector and for the parameter that says whether it streams
_VECTOR_TYPE = Path(__file__).with_name("vector.h").read_text(encoding="utf-8")


def find_vector_edits(
    site: VectorSite, packs: Sequence[Pack], hole: str, masked: str, kind: str
) -> Iterator[Edit]:
    """Yield the edits that give a thread so many neighbours as the hole says, in `kind`s."""
    variable, first, lane = site.variable, f"{site.variable}_first", f"{site.variable}_lane"
    for match in re.finditer(rf"(?<![\w.]){variable}\b", masked[slice(*site.header)]):
        at = site.header[0] + match.start()
        if not any(start <= at < end for start, end in site.scaled):
            yield Edit(at, at + len(variable), first)
    yield Edit(*site.declared, first)
    for start, end in site.scaled:
        text = masked[start:end]
        simple = re.fullmatch(r"[\w.]+", text)
        yield Edit(start, start, "" if simple else "(")
        yield Edit(end, end, f" * {hole}" if simple else f") * {hole}")
    loads, stores = [], []
    for pack in packs:
        vector = f"{kind}<{pack.c_type}, {hole}>"
        place = re.sub(rf"(?<![\w.]){variable}\b", first, pack.element)
        if pack.reads:
            const = "" if pack.writes else "const "
            read = f"*reinterpret_cast<const {vector}*>(&{place})"
            read = f"{vector}::load(&{place})" if pack.is_once else read
            loads.append(f"{const}{vector} {pack.name} = {read};")
        else:
            loads.append(f"{vector} {pack.name};")
        if pack.writes:
            stores.append(f"{pack.name}.store(&{place});")
        for span in pack.spans:
            yield Edit(*span, f"{pack.name}.values[{lane}]")
    row = masked[masked.rfind("\n", 0, site.declared[0]) + 1 : site.declared[0]]
    margin = " " * (len(row) - len(row.lstrip()))
    inside = margin if site.guarded and not site.braced else f"{margin}  "
    loop = [
        *loads,
        "#pragma unroll",
        f"for (int {lane} = 0; {lane} < {hole}; ++{lane}) {{",
        f"  const {site.c_type.removeprefix('const ')} {variable} = {first} + {lane};",
    ]
    start, end = site.body
    wrapped = not site.braced and not site.guarded
    single = not site.braced and masked[end - 1 : end] == ";"
    opened = "{" if wrapped or (single and site.guarded) else ""
    begin, stop = (start + 1, end - 1) if site.braced else (start, end)
    closed = "}" if opened else ""
    rows = "\n".join(text if text.startswith("#") else f"{inside}{text}" for text in loop)
    after = "" if masked[begin : begin + 1] == "\n" else f"\n{inside}  "
    yield Edit(begin, begin, f"{opened}\n{rows}{after}")
    last = "\n".join(f"{inside}{text}" for text in ["}", *stores])
    before = masked[:stop].rstrip(" ")
    lead = "" if before.endswith("\n") else "\n"
    last = last if lead else last[min(stop - len(before), len(inside)) :]
    tail = f"\n{margin}{closed}" if closed else ("\n" if not site.braced else f"\n{margin}")
    yield Edit(stop, stop, f"{lead}{last}{tail}")


def vector_type(name: str, streaming: str) -> str:
    """Write the struct of a vector; it knows of streams where a parameter `streaming` does."""
    text = _VECTOR_TYPE.replace("VECTOR", name).replace("STREAMING", streaming) + "\n"
    return text if streaming else re.sub(r"//% if .*?//% endif\n", "", text, flags=re.DOTALL)
