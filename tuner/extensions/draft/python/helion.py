"""Parameters of a kernel of Helion, out of the configs that its decoration names."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.extensions.draft.guesses import GUESSED, LIKELY
from tuner.extensions.draft.python.configs import Tunable, TunedConfigs
from tuner.extensions.draft.python.literals import Made, UnreadableError
from tuner.extensions.draft.python.source import PythonKernel, PythonSource, calls_in
from tuner.model.expressions import Value

_SETTINGS = tomllib.loads(Path(__file__).with_name("helion.toml").read_text(encoding="utf-8"))
# None says that it has no loop
_OWN: Mapping[str, Value | None] = {"reduction_loops": None, **_SETTINGS["own"]}
_LEAST_BLOCK = 16
_REMEDY = (
    "let Helion autotune it once and write the config that it prints here: "
    "`@helion.kernel(config=helion.Config(block_sizes=[64, 64], num_warps=4))`"
)


@dataclass(frozen=True, slots=True)
class HelionConfig:
    """What a config is made of: each setting as Python text over `config`, in order."""

    tuned: TunedConfigs
    settings: Mapping[str, str]


def tuned_by_helion(source: PythonSource, kernel: PythonKernel) -> HelionConfig:
    """Propose the parameters of a Helion kernel; raise `KernelError` where no config says them."""
    made = _configs(source, kernel)
    line = made[0].line
    first_said = {n: v for one in reversed(made) for n, v in one.keywords.items()}
    names = dict.fromkeys(name for one in made for name in one.keywords)
    # Helion's own value of what only others say, where that is known
    implied = {
        name: [_OWN[name]] * len(value) if isinstance(value, list) else _OWN[name]
        for name, value in first_said.items()
        if name in _OWN
    }
    filled = [{**implied, **one.keywords} for one in made]
    configs = [{name: one[name] for name in names if name in one} for one in filled]
    tunables: list[Tunable] = []
    texts: dict[str, str] = {}
    left: list[str] = []
    for name in dict.fromkeys(name for config in configs for name in config):
        values = [config[name] for config in configs if name in config]
        found, text = _setting(name, values, line)
        is_known = name in configs[0]
        tunables += [replace(tunable, is_known=is_known) for tunable in found]
        if found or is_known:
            texts[name] = text
        if not found:
            stays = repr(values[0]) if is_known else "Helion's own, as in the first config"
            left.append(f"{name}: stays {stays}, line {line}")
    suggestions = tuple(_others(configs, tunables))
    for name in _SETTINGS["anyway"]:
        if name not in texts:
            own, choices = _SETTINGS["own"][name], tuple(_SETTINGS["choices"][name])
            note = f"usual values; Helion's own is {own}"
            tunables.append(Tunable(name, choices, own, LIKELY, note))
            texts[name] = f'config["{name}"]'
    return HelionConfig(TunedConfigs(tuple(tunables), tuple(left), suggestions), texts)


def _configs(source: PythonSource, kernel: PythonKernel) -> list[Made]:
    decoration = kernel.decoration("kernel")
    line = kernel.line if decoration is None else decoration.line
    call = decoration.call if decoration is not None else None
    nodes = [o.value for o in (call.keywords if call else ()) if o.arg in ("config", "configs")]
    if not nodes:
        everywhere = calls_in(source.tree)
        nodes = [n for n in everywhere if ast.unparse(n.func).endswith("helion.Config")]
        if len(nodes) != 1:
            raise source.error(f"{kernel.name} names no config of its own", line, _REMEDY)
    try:
        values = source.literals.value(nodes[0])
    except UnreadableError as error:
        message = f"the config of {kernel.name} cannot be read without running `{error.text}`"
        raise source.error(message, error.line, _REMEDY) from error
    made = values if isinstance(values, list) else [values]
    if not made or not all(isinstance(one, Made) and one.keywords for one in made):
        message = f"`{ast.unparse(nodes[0])[:80]}` is no helion.Config with settings"
        raise source.error(message, nodes[0].lineno, _REMEDY)
    return made


def _setting(name: str, values: Sequence[object], line: int) -> tuple[list[Tunable], str]:
    first = values[0]
    if name in _SETTINGS["lists"] and isinstance(first, list):
        lists = [one for one in values if isinstance(one, list) and len(one) == len(first)]
        tunables, texts = [], []
        for place in range(len(first)):
            tunable = _one(name, f"{name}_{place}", [one[place] for one in lists], line)
            tunables += [] if tunable is None else [tunable]
            texts.append(repr(first[place]) if tunable is None else f'config["{tunable.name}"]')
        return tunables, f"[{', '.join(texts)}]"
    tunable = _one(name, name, values, line)
    return ([], repr(first)) if tunable is None else ([tunable], f'config["{name}"]')


def _one(setting: str, name: str, values: Sequence[object], line: int) -> Tunable | None:
    simple = [v for v in values if isinstance(v, int | str) and not isinstance(v, bool)]
    if len(simple) < len(values):
        return None
    known = [*dict.fromkeys(simple)]
    usual = tuple(_SETTINGS["choices"].get(setting, ()))
    if setting == "block_sizes":
        sizes = [value for value in known if isinstance(value, int)]
        around = ((v, n) for v in sizes for n in (v // 4, v // 2, v, v * 2, v * 4))
        usual = tuple(n for v, n in around if n >= min(_LEAST_BLOCK, v) and n & (n - 1) == 0)
    if not usual and len(known) == 1:
        return None
    listed = dict.fromkeys([*usual, *known])
    numbers = all(isinstance(value, int) for value in listed)
    ordered = sorted(listed, key=int) if numbers else [*listed]
    note = f"around what helion.Config says, line {line}"
    return Tunable(name, tuple(ordered), known[0], GUESSED, note)


def _others(
    configs: Sequence[Mapping[str, Any]], tunables: Sequence[Tunable]
) -> Iterator[Mapping[str, Value]]:
    for config in configs[1:]:
        found: dict[str, Value] = {}
        for tunable in tunables:
            setting, _, place = tunable.name.rpartition("_")
            value = config.get(tunable.name)
            if value is None and isinstance(values := config.get(setting), list):
                value = values[int(place)] if int(place) < len(values) else None
            if value in tunable.values:
                found[tunable.name] = value
        # What a suggestion leaves out becomes the default's, which this config may not have.
        if found and len(found) == len(tunables):
            yield found
