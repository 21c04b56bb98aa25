"""What of a stranger's draft is right, wrong or in doubt; and the draft, mended."""

from __future__ import annotations

import keyword
import math
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tuner.model.errors import ExpressionError
from tuner.model.expressions import Expression

FOLDER = Path(__file__).with_name("strangers")
SMALL = Path(__file__).with_name("strangers_small.yaml")
# What an expert names, by what a parameter is called in a draft; a block is what sizes it.
KINDS = {
    "vec": re.compile(r".*(vec|wid|pack|lump).*"),
    "items": re.compile(r".*(items|each|run|per_th|coars|chunk).*"),
    "unroll": re.compile(r"unroll.*"),
    "rows": re.compile(r".*(rows|warps|troops|block_y|threads_y|patch_threads|power).*"),
    "tile": re.compile(r".*(tile|patch|cargo).*"),
}
_BOUNDS = re.compile(r"__launch_bounds__\([^()]*(?:\([^()]*\)[^()]*)*\)")
_HOLE = re.compile(r"@\{ (.*?) \}@")
_MOST_CONFIGS = 20_000
# A guess that says that it is one is no silent one; a blank speaks of what it names alone.
DOUBT = re.compile(r"#.*(?:\bguess|\blikely|\bunsure|\bnot sure)", re.IGNORECASE)
BLANK = "FILL_IN"
OUT = ("output", "inout")
LAUNCH_KEYS = {"grid": "grid", "block": "block", "shared_memory": "shared"}


@dataclass(frozen=True)
class Case:
    """One source, with what a right draft of it says."""

    project: str
    source: Path
    expected: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.project}/{self.source.stem}"

    @property
    def is_small(self) -> bool:
        return self.project in ("small", "unseen")

    def copy_to(self, folder: Path) -> Path:
        """Copy what a user has of the source; give the file to draft."""
        if self.is_small:
            folder.mkdir(parents=True)
            return Path(shutil.copy(self.source, folder))
        root = FOLDER / self.project
        shutil.copytree(root, folder, ignore=shutil.ignore_patterns("*.yaml"))
        return folder / self.source.relative_to(root)


@dataclass
class Judgement:
    """What is wrong in a draft: silently, said to be in doubt, and the lines that mend it."""

    silent: list[str] = field(default_factory=list)
    lines: int = 0
    block_offered: bool = False
    problem: str = ""
    inputs: tuple[Path, str, int] | None = None
    experts: dict[str, bool | None] = field(default_factory=dict)


@dataclass
class Paper:
    """The lines of a drafted search space, to be read and mended."""

    text: list[str]
    mended: int = 0

    def at(self, pattern: str, after: int = 0) -> int | None:
        found = (n for n in range(after, len(self.text)) if re.match(pattern, self.text[n]))
        return next(found, None)

    def mend(self, at: int, text: str) -> None:
        if self.text[at] != text:
            self.text[at] = text
            self.mended += 1

    def add(self, at: int, text: str) -> None:
        self.text.insert(at, text)
        self.mended += 1


def cases(names: Sequence[str] = (), *, large: bool = False) -> list[Case]:
    """Read the cases whose name holds one of `names`, all without any; at their large sizes."""
    found = []
    for path in sorted(FOLDER.rglob("*.yaml")):
        if path.stem.endswith(".mutants"):
            continue
        expected = YAML(typ="safe").load(path)
        if large:
            expected["sizes"] = expected["large"]
        project = path.relative_to(FOLDER).parts[0]
        found.append(Case(project, path.with_suffix(".cu"), expected))
    return [one for one in found if not names or any(name in one.name for name in names)]


def small_cases(folder: Path, names: Sequence[str] = ()) -> list[Case]:
    """Read the cases of `unseen` and of a folder of small sources, those that are there."""
    found = []
    for name, expected in YAML(typ="safe").load(SMALL).items():
        is_unseen = name.startswith("unseen/")
        stem = name.rpartition("/")[2]
        source = SMALL.parent / name / f"{stem}.cu" if is_unseen else folder / f"{stem}.cu"
        if source.is_file():
            found.append(Case("unseen" if is_unseen else "small", source, expected))
    return [one for one in found if not names or any(name in one.name for name in names)]


def value_of(text: object, names: Mapping[str, Any]) -> float | None:
    """Evaluate an expression; None where it isn't one, or has an unknown name."""
    try:
        return float(Expression.parse(str(text)).evaluate(names))
    except (ExpressionError, TypeError, ValueError):
        return None


def sizes_of(drafted: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, int]:
    """Give each axis of a draft its size, by its name or else by where it mostly stands."""
    sizes = expected["sizes"]
    known = {axis: sizes[axis] for axis in drafted["axes"] if axis in sizes}
    found: dict[str, Counter[int]] = {}
    for dim, size in standing(drafted, expected):
        if dim in drafted["axes"] and dim not in known and size is not None and size == int(size):
            found.setdefault(str(dim), Counter())[int(size)] += 1
    return known | {axis: counts.most_common(1)[0][0] for axis, counts in found.items()}


def standing(drafted: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Pair what stands in a draft's grid, shapes and values with the sizes that are right there."""
    sizes, right = expected["sizes"], expected["arguments"]
    goal = expected["launch"]["grid"]
    if not any(isinstance(one, list) for one in goal):
        grid = choice(drafted["baseline"]["launch"][0].get("grid", []))
        yield from zip(grid, [value_of(one, sizes) for one in goal], strict=False)
    for argument in drafted["arguments"]:
        wanted = right.get(argument["name"], {})
        if "shape" in argument and "shape" in wanted:
            dims, goal = argument["shape"], [value_of(one, sizes) for one in wanted["shape"]]
            goal = goal if len(dims) == len(goal) else [math.prod(goal)] * (len(dims) == 1)
            yield from zip(dims, goal, strict=False)
        elif "value" in argument and "value" in wanted:
            yield argument["value"], value_of(wanted["value"], sizes)


def in_doubt(line: str, kind: str) -> bool:
    """Tell whether a line says that it doesn't know this: a shape, a role, a dtype or a value."""
    return bool(DOUBT.search(line) or re.search(rf"FILL IN.*\b{kind}\b|{kind}:[^,]*{BLANK}", line))


def choice(wanted: object) -> list[Any]:
    """Give what is right: one thing, or any of a list of them."""
    return list(wanted) if isinstance(wanted, list) else [wanted]


def same_shape(dims: Sequence[object], goal: Sequence[int], known: Mapping[str, int]) -> bool:
    """Tell whether a shape is the same memory: as it is, flat, or with neighbours as one."""
    found = [value_of(one, known) for one in dims]
    if None in found:
        return False
    steps, wanted = strides(found), strides(goal)
    return found == [*goal] or (
        math.prod(found) == math.prod(goal) and (steps <= wanted or wanted <= steps)
    )


def strides(dims: Sequence[float]) -> set[float]:
    """Give how far apart elements are along each dimension but the last."""
    return {math.prod(dims[place:]) for place in range(1, len(dims))} - {1}


def faults(
    argument: Mapping[str, Any], wanted: Mapping[str, Any], known: Mapping[str, int], sizes: Any
) -> list[str]:
    """Name what of an argument isn't as it has to be."""
    wrong = []
    if argument.get("dtype") not in choice(wanted["dtype"]):
        wrong.append(f"dtype {argument.get('dtype')}")
    if "shape" in wanted:
        goal = [int(value_of(one, sizes)) for one in wanted["shape"]]
        if not same_shape(argument.get("shape", ()), goal, known):
            wrong.append(f"shape {argument.get('shape')}")
        if argument.get("role") != wanted["role"]:
            wrong.append(f"role {argument.get('role')}")
    else:
        found, goal = value_of(argument.get("value"), known), value_of(wanted["value"], sizes)
        right = goal is not None and found is not None
        if not right or not (wanted.get("free") or math.isclose(found, goal, rel_tol=1e-6)):
            wrong.append(f"value {argument.get('value')}")
    return wrong


def right_line(argument: Mapping[str, Any], wanted: Mapping[str, Any], known: Any, sizes: Any):
    """Write an argument as it has to be, in the axes of the draft where it has them."""
    dtypes = choice(wanted["dtype"])
    dtype = argument.get("dtype") if argument.get("dtype") in dtypes else dtypes[0]
    head = f"  - {{name: {argument['name']}, dtype: {dtype}"
    if "value" in wanted:
        text = str(wanted["value"])
        number = value_of(text, sizes)
        whole = int(number) if float(number).is_integer() and "float" not in dtype else number
        return f"{head}, value: {text if text in known else whole}}}"
    dims = [one if one in known else int(value_of(one, sizes)) for one in wanted["shape"]]
    idle = f", idle: {wanted['idle']}" if "idle" in wanted else ""
    return f"{head}, shape: [{', '.join(map(str, dims))}], role: {wanted['role']}{idle}}}"


def judge_arguments(paper: Paper, drafted: Any, case: Case, known: Any, made: Judgement) -> None:
    """Compare the arguments, and mend them."""
    right, sizes = case.expected["arguments"], case.expected["sizes"]
    names = [argument["name"] for argument in drafted["arguments"]]
    if names != list(right):
        made.problem = f"arguments {', '.join(names)}"
        made.silent.append(made.problem)
        return
    for argument in drafted["arguments"]:
        wanted = right[argument["name"]]
        wrong = faults(argument, wanted, known, sizes)
        at = paper.at(rf"\s+- \{{name: {re.escape(argument['name'])},")
        if at is None:
            made.problem = f"the line of {argument['name']} isn't found"
        elif wrong:
            line = paper.text[at]
            untold = [one for one in wrong if not in_doubt(line, one.split()[0])]
            made.silent += [f"{argument['name']}: {one}" for one in untold]
            paper.mend(at, right_line(argument, wanted, known, sizes))


def judge_launch(paper: Paper, drafted: Any, case: Case, known: Any, made: Judgement) -> None:
    """Compare where and how the kernel is launched, as baseline and in the template."""
    wanted = case.expected["launch"]
    default = {**known, **(drafted.get("default") or {})}
    launches = {
        "baseline:": (drafted["baseline"]["launch"][0], known),
        "launch:": (drafted["launch"][0], default),
    }
    for head, (launch, names) in launches.items():
        start = paper.at(head)
        for key, name in LAUNCH_KEYS.items():
            goal = wanted.get(name, [] if name != "shared" else 0)
            found = launch.get(key, 0 if name == "shared" else [])
            if launch_is(found, goal, names, case.expected["sizes"]):
                continue
            at = paper.at(rf"\s+{key}:", start)
            text = first_of(goal, case.expected["sizes"])
            if at is None:
                before = paper.at(r"\s+block:", start)
                indent = re.match(r"\s*", paper.text[before]).group()
                paper.add(before + 1, f"{indent}{key}: {text}")
                made.silent += [f"launch: no {key}"] * (head == "baseline:")
                continue
            if head == "baseline:" and not in_doubt(paper.text[at], key):
                made.silent.append(f"launch: {key} {found}")
            indent = re.match(r"\s*", paper.text[at]).group()
            paper.mend(at, f"{indent}{key}: {text}")


def launch_is(found: Any, goal: Any, names: Any, sizes: Any) -> bool:
    """Tell whether a grid, a block or shared memory is what is right, missing ones being 1."""
    if any(isinstance(one, list) for one in choice(goal)):
        return any(launch_is(found, one, names, sizes) for one in goal)
    have = [value_of(one, names) for one in choice(found)]
    want = [value_of(one, sizes) for one in choice(goal)]
    longest = max(len(have), len(want))
    return have + [1.0] * (longest - len(have)) == want + [1.0] * (longest - len(want))


def first_of(goal: Any, sizes: Any) -> str:
    """Write a grid, a block or shared memory in numbers."""
    if not isinstance(goal, list):
        return str(int(value_of(goal, sizes)))
    goal = goal[0] if goal and isinstance(goal[0], list) else goal
    return f"[{', '.join(str(int(value_of(one, sizes))) for one in goal)}]"


def judge_rest(paper: Paper, drafted: Any, case: Case, known: Mapping[str, int]) -> str:
    """Fill in the sizes and the bytes, set the tolerances; give a problem that is left."""
    missing = [axis for axis in drafted["axes"] if axis not in known]
    if missing:
        return f"nobody knows the axes {', '.join(missing)}"
    pairs = ", ".join(f"{axis}: {known[axis]}" for axis in drafted["axes"])
    paper.mend(paper.at(r"  tuned:"), f"  tuned: [{{{pairs}}}]")
    mend_tolerances(paper, case)
    left = [line.strip() for line in paper.text if re.search(rf":.*\b{BLANK}\b", line)]
    return f"left blank: {left[0]}" if left else ""


def mend_tolerances(paper: Paper, case: Case) -> None:
    """Leave no tolerance to what is no output, and state the one that a case asks for."""
    head, wanted = paper.at("tolerance:"), case.expected.get("mend", {}).get("tolerance", {})
    for name, one in case.expected["arguments"].items():
        at = paper.at(rf"  {name}: ", head)
        if at is not None and one.get("role") not in ("output", "inout"):
            paper.text.pop(at)
            paper.mended += 1
        elif at is not None and name in wanted:
            inside = ", ".join(f"{key}: {bound}" for key, bound in wanted[name].items())
            paper.mend(at, f"  {name}: {{{inside}}}")


def judge(space: Path, case: Case) -> Judgement:
    """Compare a draft with what is right, and mend it in its file."""
    made = Judgement()
    paper = Paper(space.read_text(encoding="utf-8").splitlines())
    drafted = YAML(typ="safe").load(space)
    known = sizes_of(drafted, case.expected)
    judge_arguments(paper, drafted, case, known, made)
    judge_launch(paper, drafted, case, known, made)
    made.problem = made.problem or judge_rest(paper, drafted, case, known)
    made.lines = paper.mended
    made.block_offered = offers_block(drafted)
    for kind in case.expected.get("expert", ()):
        template = (space.parent / drafted["template"]).read_text(encoding="utf-8")
        named = [name for name in several_of(drafted) if is_of_kind(name, kind, drafted)]
        shown = (is_effective(name, kind, drafted, template, known) for name in named)
        made.experts[kind] = any(shown) if named else None
    space.write_text("\n".join(paper.text) + "\n", encoding="utf-8")
    mended = YAML(typ="safe").load(space)
    reference = (space.parent / mended["reference"]).resolve()
    reference.write_text(reference_file(case, mended, known, own_inputs=False), encoding="utf-8")
    if body := case.expected.get("inputs"):
        made.inputs = reference, reference_file(case, mended, known), len(body.splitlines())
    return made


def several_of(drafted: Any) -> set[str]:
    """List the parameters that have several values."""
    parameters = drafted.get("parameters") or {}
    return {name for name, values in parameters.items() if len(values) > 1 and name != BLANK}


def is_of_kind(name: str, kind: str, drafted: Any) -> bool:
    """Tell whether a parameter is what an expert would call so."""
    launch = drafted["launch"][0]
    if kind == "block":
        return re.search(rf"\b{name}\b", " ".join(map(str, launch["block"]))) is not None
    return KINDS[kind].fullmatch(name) is not None


def is_effective(
    name: str, kind: str, drafted: Any, template: str, known: Mapping[str, int]
) -> bool:
    """Tell whether another value of a parameter is another launch or other code.

    Of a block it is the launch that has to change, and a bound of the registers is no change.
    """
    values, default = drafted["parameters"], drafted["default"]
    asked = [Expression.parse(text) for text in drafted.get("constraints") or []]
    configs = (
        dict(zip(values, one, strict=True))
        for one in islice(product(*values.values()), _MOST_CONFIGS)
    )

    def made(config: Mapping[str, Any]) -> tuple[Any, str]:
        launch, names = drafted["launch"][0], {**known, **config}
        numbers = [
            value_of(text, names) for key in LAUNCH_KEYS for text in choice(launch.get(key, 0))
        ]
        code = _HOLE.sub(lambda hole: str(Expression.parse(hole[1]).evaluate(config)), template)
        return numbers, _BOUNDS.sub("", code)

    for config in configs:
        names = {**known, **config}
        if config[name] == default[name] or not all(one.evaluate(names) for one in asked):
            continue
        (launch, code), (own_launch, own_code) = made(config), made({**config, name: default[name]})
        if launch != own_launch or (kind != "block" and code != own_code):
            return True
    return False


def offers_block(drafted: Any) -> bool:
    """Tell whether a parameter of several values sizes the block."""
    return any(is_of_kind(name, "block", drafted) for name in several_of(drafted))


def reference_file(
    case: Case, mended: Any, known: Mapping[str, int], *, own_inputs: bool = True
) -> str:
    """Write the reference, and the inputs where a case has its own, over the right shapes."""
    expected, right = case.expected, case.expected["arguments"]
    read = [n for n, one in right.items() if one.get("role") in ("input", "inout")]
    shapes = {name: one["shape"] for name, one in right.items() if "shape" in one}
    shapes |= {one["name"]: one["shape"] for one in mended["arguments"] if "shape" in one}
    numbers = [f"    {name} = {text}" for name, text in numbers_of(case, mended, known).items()]
    lines = [
        "def ceil_div(one, other):",
        "    return -(-one // other)",
        "",
        "",
        "def reference(xp, inputs, axes, **operator):",
        *numbers,
    ]
    own = {n: f"{n}_" if keyword.iskeyword(n) else n for n in read}
    reshaped = {n: in_python(right[n]["shape"]) for n in read}
    lines += [f"    {own[n]} = inputs[{n!r}].reshape({reshaped[n]})" for n in read]
    lines += [f"    def outputs({', '.join(own.values())}):"]
    lines += [f"        {line}" for line in expected["reference"].splitlines()]
    made = f"outputs({', '.join(own.values())}).items()"
    written = {n: in_python(shapes[n]) for n, one in right.items() if one.get("role") in OUT}
    pairs = ", ".join(f"{n!r}: {shape}" for n, shape in written.items())
    lines += [f"    shapes = {{{pairs}}}"]
    lines += [f"    return {{n: xp.asarray(one).reshape(shapes[n]) for n, one in {made}}}"]
    if (body := expected.get("inputs")) and own_inputs:
        drawn = [n.strip() for line in body.splitlines() for n in line.split(" = ")[0].split(",")]
        made = ", ".join(f"{n!r}: {n}.reshape({in_python(shapes[n])})" for n in drawn)
        lines += ["", "", "def inputs(xp, rng, axes, fill):", *numbers]
        lines += [f"    {line}" for line in body.splitlines()]
        lines += [f"    return {{{made}}}"]
    return "\n".join(lines) + "\n"


def in_python(shape: Sequence[object]) -> str:
    """Write a shape as a tuple."""
    return f"({', '.join(f'int({extent})' for extent in shape)},)"


def numbers_of(case: Case, mended: Any, known: Mapping[str, int]) -> dict[str, object]:
    """Say of each number that a reference may name what it is, in the axes where it is one.

    A size by another name than the draft's is the axis that alone has its number.
    """
    sizes = case.expected["sizes"]
    numbers: dict[str, object] = {axis: f"axes[{axis!r}]" for axis in known}
    for name, size in sizes.items():
        axes = [axis for axis, number in known.items() if number == size and axis not in sizes]
        if name not in known:
            numbers[name] = numbers[axes[0]] if len(axes) == 1 else size
    values = {one["name"]: one["value"] for one in mended["arguments"] if "value" in one}
    return numbers | {name: text for name, text in values.items() if name not in numbers}
