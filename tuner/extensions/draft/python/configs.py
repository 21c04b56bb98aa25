"""Parameters of a Triton kernel: out of `triton.autotune`, else out of signature and launch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tuner.extensions.draft.guesses import GUESSED, LIKELY, SURE
from tuner.extensions.draft.python.accesses import loops, multiplies
from tuner.extensions.draft.python.literals import Made, UnreadableError, bindings
from tuner.extensions.draft.python.source import (
    PythonKernel,
    PythonLaunchSite,
    PythonSource,
    all_arguments,
    argument_of,
    defaults_of,
    passed_to,
)
from tuner.model.config import RESERVED_NAMES
from tuner.model.expressions import Value
from tuner.space.schema import MOST_SUGGESTIONS

WARPS, STAGES = "num_warps", "num_stages"
_ORDER = ("kwargs", WARPS, STAGES, "num_ctas", "maxnreg", "pre_hook")
# What Triton compiles with where nobody says (triton.Config).
_OWN = {WARPS: 4, STAGES: 3, "num_ctas": 1}
_USUAL: Mapping[str, tuple[Value, ...]] = {WARPS: (1, 2, 4, 8, 16), STAGES: (1, 2, 3, 4, 5)}
_OPTIONS = frozenset({*_ORDER[1:], "ir_override"})
_TUNABLE = re.compile(
    r"(?:^|_)(?:block|blk|tile|group|split|unroll|stages|warps|items|rows_per|xblock|yblock|rblock)"
    r"|^b[mnkdvshtc]\d?$|^(?:block|tile|group)",
    re.IGNORECASE,
)
_IS_BLOCK = re.compile(r"block|tile|^b[mnk]$", re.IGNORECASE)
# `tl.dot` takes no less on a side.
_LEAST_DOT = 16
# What is taken where only a caller knows.
_GUESSED_BLOCK, _GUESSED_OTHER = 64, 8
_REMEDY = (
    "write the configs as `triton.Config({...}, num_warps=4)` over numbers, lists, comprehensions "
    "and itertools.product, in this file"
)


@dataclass(frozen=True, slots=True)
class Tunable:
    """A parameter with its values, and how sure what is said of them is.

    `is_known` says that the default is what the source does, and no guess.
    """

    name: str
    values: tuple[Value, ...]
    default: Value
    certainty: str
    note: str
    is_known: bool = True


@dataclass(frozen=True, slots=True)
class TunedConfigs:
    """All parameters of a kernel; `left` says of other numbers why they are none.

    `suggestions` are the file's other configs. `hook` is what each config is handed to before a
    launch, as text. `notes` tell of what a draft does not take over.
    """

    tunables: tuple[Tunable, ...]
    left: tuple[str, ...] = ()
    suggestions: tuple[Mapping[str, Value], ...] = ()
    hook: str = ""
    notes: tuple[str, ...] = ()


def tuned_by(
    source: PythonSource,
    kernel: PythonKernel,
    host: ast.FunctionDef,
    sites: Sequence[PythonLaunchSite],
) -> TunedConfigs:
    """Propose the parameters of a Triton kernel.

    Raises `KernelError` for configs that only running the file could tell, and where there is
    nothing to choose.
    """
    if kernel.autotune is not None:
        configs = _read_autotune(source, kernel, kernel.autotune)
    else:
        configs = _read_launches(source, kernel, host, sites[0])
    named = {tunable.name for tunable in configs.tunables}
    bad = next((name for name in named if name in RESERVED_NAMES), None)
    if bad is not None:
        remedy = "rename it in the kernel and its launch"
        raise source.error(f"{bad!r} cannot be a parameter", kernel.line, remedy)
    more, left = _compiler_options(source, kernel, named, sites[0])
    return replace(configs, tunables=configs.tunables + more, left=configs.left + left)


def _read_autotune(source: PythonSource, kernel: PythonKernel, call: ast.Call) -> TunedConfigs:
    node = argument_of(call, "configs", 0)
    if node is None:
        raise source.error("triton.autotune without configs", call.lineno, _REMEDY)
    notes = []
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "filter" and len(node.args) == 2:
            kept, line = ast.unparse(node.args[0]), node.lineno
            notes.append(f"filter({kept}, ...) (line {line}) is not applied: all are listed")
        elif node.func.id != "list" or len(node.args) != 1:
            break
        node = node.args[-1]
    try:
        configs = source.literals.value(node)
    except UnreadableError as error:
        message = f"the configs of {kernel.name} cannot be read without running `{error.text}`"
        raise source.error(message, error.line, _REMEDY) from error
    if isinstance(configs, Made):
        configs = [configs]
    made = [one for one in configs or () if isinstance(one, Made)]
    if not made or len(made) != len(configs):
        message = (
            f"the configs of {kernel.name} are no list of triton.Config: `{ast.unparse(node)[:80]}`"
        )
        raise source.error(message, node.lineno, _REMEDY)
    said = []
    for one in made:
        given = {**dict(zip(_ORDER, one.arguments, strict=False)), **one.keywords}
        options = {name: given[name] for name in _ORDER[1:5] if given.get(name) is not None}
        said.append({**(given.get("kwargs") or {}), **options})
    names = list(dict.fromkeys(name for one in said for name in one))
    defaults = {n: source.literals.try_evaluate(node) for n, node in kernel.constexprs.items()}
    implied = {n: value for n, value in defaults.items() if isinstance(value, Value)} | _OWN
    choices = [{name: one.get(name, implied.get(name)) for name in names} for one in said]
    # What a kernel cannot be launched without: a config that lacks it is of no use.
    needed = {name for name, default in kernel.constexprs.items() if default is None}
    tunables, left, line = [], [], made[0].line
    for name in names:
        stated = [one[name] for one in said if name in one]
        odd = [value for value in stated if not isinstance(value, Value)]
        if odd:
            left.append(f"{name}: {odd[0]!r} is no number, text or boolean; line {line}")
        elif len(stated) < len(said) and name not in implied and name not in needed:
            left.append(
                f"{name}: only some configs have it, and what the others do is no number or text"
            )
        else:
            values = [value for choice in choices if (value := choice[name]) is not None]
            tunables.append(_make_tunable(name, values, line, _least(source, kernel, name)))
    full = [{t.name: v for t in tunables if (v := row[t.name]) is not None} for row in choices]
    distinct = [dict(pairs) for pairs in dict.fromkeys(tuple(one.items()) for one in full)]
    others = [one for one in distinct[1:] if len(one) == len(tunables)]
    hook, hook_notes = _hook(made)
    heuristics = _heuristics(source, kernel)
    for name in kernel.constexprs:
        if name in heuristics:
            left.append(f"{name}: triton.heuristics computes it, line {heuristics[name]}")
        elif name not in names and _TUNABLE.search(name):
            left.append(f"{name}: the launch passes it, and no config of triton.autotune has it")
    return TunedConfigs(
        tuple(tunables),
        tuple(left),
        _choose_suggestions(tunables, others),
        hook,
        (*notes, *hook_notes, *_ignored_keywords(call)),
    )


def _choose_suggestions(
    tunables: Sequence[Tunable], others: Sequence[Mapping[str, Value]]
) -> tuple[Mapping[str, Value], ...]:
    """Choose among the file's other configs: of all that there are none says more than another.

    Of more than a space may suggest, some from everywhere: the first ones are often alike.
    """
    if len(others) + 1 == prod(len(tunable.values) for tunable in tunables):
        return ()
    step = max(len(others) / MOST_SUGGESTIONS, 1.0)
    return tuple(others[int(n * step)] for n in range(min(len(others), MOST_SUGGESTIONS)))


def _make_tunable(name: str, values: Sequence[Value], line: int, least: int) -> Tunable:
    distinct = tuple(dict.fromkeys(values))
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in distinct)
    listed = tuple(sorted(distinct, key=float)) if numbers else distinct
    note = f"triton.autotune, line {line}"
    if len(listed) == 1 and isinstance(listed[0], int) and numbers:
        around = _USUAL.get(name) or _around(listed[0], least)
        if len(around) > 1 and (name in _USUAL or _TUNABLE.search(name)):
            note = f"values around {listed[0]}, the only one of {note}"
            near = tuple(sorted({*around, listed[0]}, key=float))
            return Tunable(name, near, listed[0], GUESSED, note)
    return Tunable(name, listed, values[0], SURE, note)


def _hook(made: Sequence[Made]) -> tuple[str, list[str]]:
    hooks = {str(one.keywords.get("pre_hook", "None")) for one in made} - {"None"}
    if not hooks:
        return "", []
    line = made[0].line
    if len(hooks) == 1 and (hook := hooks.pop()).isidentifier():
        return hook, [f"pre_hook {hook} (line {line}) is kept: launch calls it before the kernel"]
    names = ", ".join(sorted(hooks)) or "a function without a name"
    return "", [f"pre_hook (line {line}: {names}) is not kept: call it in launch, if it is needed"]


def _ignored_keywords(call: ast.Call) -> Iterator[str]:
    for keyword in call.keywords:
        line, text = keyword.value.lineno, ast.unparse(keyword.value)
        if keyword.arg == "prune_configs_by":
            yield (
                f"prune_configs_by (line {line}) is not read: write what it leaves out as "
                "`constraints` (wrong) or `prune` (slow)"
            )
        elif keyword.arg in ("restore_value", "reset_to_zero"):
            yield (
                f"{keyword.arg}={text} (line {line}) is ignored: it protects arrays while Triton "
                "tries configs, and the tuner gives each call its own"
            )
        elif keyword.arg in ("pre_hook", "post_hook"):
            yield f"{keyword.arg} of triton.autotune (line {line}) is ignored"


def _heuristics(source: PythonSource, kernel: PythonKernel) -> dict[str, int]:
    found = {}
    for decoration in kernel.decorations:
        call = decoration.call if decoration.name == "heuristics" else None
        node = argument_of(call, "values", 0) if call is not None else None
        if isinstance(node, ast.Name):
            values = (value for n in source.tree.body for t, value in bindings(n) if t == node.id)
            node = next(values, None)
        for key in node.keys if isinstance(node, ast.Dict) else ():
            if isinstance(key, ast.Constant):
                found[str(key.value)] = key.lineno
    return found


def _read_launches(
    source: PythonSource, kernel: PythonKernel, host: ast.FunctionDef, site: PythonLaunchSite
) -> TunedConfigs:
    passed, heuristics = passed_to(kernel.parameters, site.call), _heuristics(source, kernel)
    tunables, left = [], []
    for name, default in kernel.constexprs.items():
        node = passed.get(name, default)
        if name in heuristics:
            left.append(f"{name}: triton.heuristics computes it, line {heuristics[name]}")
            continue
        found = dict_values(source, host, site, name) if node is None else None
        if found is None and node is None and _TUNABLE.search(name) and _spreads(site):
            found = ([], site.line)  # in the dict of a caller
        if found is None and node is not None:
            found = _values(source, host, node)
            if found is None and is_asked_for(host, name, node):
                found = ([], node.lineno)
        is_named = _TUNABLE.search(name) is not None
        if found is None:
            why = "nothing says what the launch passes"
            if node is not None:
                text = ast.unparse(node)[:60]
                why = f"`{text}` follows from the sizes, line {node.lineno}"
            left += [f"{name}: {why}"] * is_named
            continue
        values, line = found
        numbers = [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0]
        if not is_named or len(numbers) < len(values):
            if is_named:
                left.append(f"{name}: {values[0]!r} is no whole number, line {line}")
            continue
        center = numbers[0] if numbers else guess_for(name)
        around = _around(center, _least(source, kernel, name))
        said = f"powers of two around {center}" if numbers else "powers of two, for nothing says it"
        note = f"tl.constexpr; {said}, line {line}"
        more = tuple(sorted({*around, *numbers}))
        tunables.append(Tunable(name, more, center, GUESSED, note, bool(numbers)))
    return TunedConfigs(tuple(tunables), tuple(left))


def guess_for(name: str) -> int:
    """Give a number for what looks tunable and only a caller knows."""
    return _GUESSED_BLOCK if _IS_BLOCK.search(name) else _GUESSED_OTHER


def _spreads(site: PythonLaunchSite) -> bool:
    return any(keyword.arg is None for keyword in site.call.keywords)


def is_asked_for(host: ast.FunctionDef, name: str, node: ast.expr) -> bool:
    """Tell whether a launcher asks its own caller for what looks tunable."""
    named = node.id if isinstance(node, ast.Name) else ""
    required = {argument.arg for argument in all_arguments(host)} - {*defaults_of(host)}
    return named in required and _TUNABLE.search(name) is not None


def _compiler_options(
    source: PythonSource, kernel: PythonKernel, named: set[str], site: PythonLaunchSite
) -> tuple[tuple[Tunable, ...], tuple[str, ...]]:
    """Add warps and stages where the file does not choose them itself."""
    found, left = [], []
    given = {n: value for n, value in passed_to((), site.call).items() if n in _OPTIONS}
    for name, usual in _USUAL.items():
        if name in named:
            continue
        if name == STAGES and not loops(kernel):
            left.append("num_stages: there is no loop whose loads Triton could pipeline")
            continue
        node, stated = given.get(name), None
        if site.host is not None and node is not None:
            stated = _values(source, site.host, node)
        elif site.host is not None:
            stated = dict_values(source, site.host, site, name)
        values, line = stated or ([], site.line)
        listed = [v for v in values if isinstance(v, int) and not isinstance(v, bool)]
        default = listed[0] if listed else _OWN[name]
        is_known = bool(listed) or name not in given
        if listed:
            note = f"the launch passes {default}, line {line}"
        elif is_known:
            note = f"Triton's own choice is {default}"
        else:
            note = f"the launch computes it, line {given[name].lineno}"
        near = tuple(sorted({*usual, *listed}, key=float))
        found.append(Tunable(name, near, default, LIKELY, f"usual values; {note}", is_known))
    return tuple(found), tuple(left)


def _values(
    source: PythonSource, host: ast.FunctionDef, node: ast.expr
) -> tuple[list[Value], int] | None:
    """Evaluate what is passed: a literal, a constant, a local or a parameter's default."""
    literals = source.literals
    if isinstance(node, ast.Name):
        own = [v for s in ast.walk(host) for t, v in bindings(s) if t == node.id]
        default = defaults_of(host).get(node.id)
        own += [default] if default is not None else []
        known = [value for value in map(literals.try_evaluate, own) if value is not None]
        if own:
            return (known, own[0].lineno) if len(known) == len(own) else None
    value = literals.try_evaluate(node)
    return None if value is None else ([value], node.lineno)


def dict_values(
    source: PythonSource, host: ast.FunctionDef, site: PythonLaunchSite, key: str
) -> tuple[list[Value], int] | None:
    """Collect what a key has in the dicts that a launch may be handed as `**config`.

    Those are dicts written out in the file that share keys with the kernel.
    """
    if not _spreads(site):
        return None
    found, line, is_there = [], site.line, False
    constexprs = {*source.kernels[site.kernel].constexprs}
    # the host's own first
    nodes = (n for n in (*ast.walk(host), *ast.walk(source.tree)) if isinstance(n, ast.Dict))
    for node in {id(node): node for node in nodes}.values():
        own = {key.value for key in node.keys if isinstance(key, ast.Constant)}
        if len(own & {*constexprs, *_USUAL}) < 2 and not own & constexprs:
            continue
        for name, value in zip(node.keys, node.values, strict=True):
            if isinstance(name, ast.Constant) and name.value == key:
                known = source.literals.try_evaluate(value)
                line, is_there = (line if is_there else value.lineno), True
                found += [] if known is None else [known]
    return (list(dict.fromkeys(found)), line) if is_there else None


def _least(source: PythonSource, kernel: PythonKernel, name: str) -> int:
    is_side = _IS_BLOCK.search(name) and multiplies(kernel, source.kernels)
    return _LEAST_DOT if is_side else 1


def _around(value: int, least: int) -> tuple[int, ...]:
    if value < 1 or value & (value - 1):
        return (value,)
    around = (value >> 2, value >> 1, value, value << 1, value << 2)
    return tuple(sorted({n for n in around if n >= least} | {value}))
