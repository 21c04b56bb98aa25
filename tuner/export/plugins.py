"""Write sessions' variants as an engine's plugin: the package for PyTorch, hooks, entry point."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib import resources

from tuner.export.pytorch.package import OperatorFiles, package_files, template
from tuner.export.pytorch.replacing import Engine
from tuner.export.sglang.hooks import ENGINE as SGLANG
from tuner.export.vllm.hooks import ENGINE as VLLM
from tuner.model import TUNER_VERSION

ENTRY_POINT = """
[project.entry-points."{group}"]
{package} = "{package}.{engine}:register"
"""


def sglang_files(
    package: str, operators: Sequence[OperatorFiles], folder: str = "."
) -> dict[str, str | bytes]:
    """Return all files of a plugin of SGLang by their names in `folder`."""
    return _files(SGLANG, package, operators, folder)


def vllm_files(
    package: str, operators: Sequence[OperatorFiles], folder: str = "."
) -> dict[str, str | bytes]:
    """Return all files of a plugin of vLLM by their names in `folder`."""
    return _files(VLLM, package, operators, folder)


def _files(
    engine: Engine, package: str, operators: Sequence[OperatorFiles], folder: str
) -> dict[str, str | bytes]:
    files, name = package_files(package, operators), engine.distribution
    choices = [(one.described.kernel, dict(one.choices)) for one in operators]
    values = {
        "package": package,
        "folder": folder,
        "version": TUNER_VERSION,
        "engine": engine,
        "choices": choices,
        "replaced": [(kernel, *_replaced(engine, kernel, made)) for kernel, made in choices],
        "versions": ", ".join(engine.versions),
    }
    entry = ENTRY_POINT.format(group=engine.group, package=package, engine=name)
    files["pyproject.toml"] = f"{files['pyproject.toml']!s}{entry}"
    files["README.md"] = template(f"{name}/README.md.j2").render(**values)
    files[f"{package}/{name}.py"] = template("pytorch/plugin.py.j2").render(**values)
    shipped = _shipped("pytorch", ("replacing", "adapting")) | _shipped(name, ("hooks", "plugin"))
    return files | {f"{package}/{one}.py": text for one, text in shipped.items()}


def _shipped(folder: str, modules: Iterable[str]) -> dict[str, str]:
    """Read modules of tuner.export as one flat package has them."""
    here = resources.files(f"tuner.export.{folder}")
    read = {one: (here / f"{one}.py").read_text(encoding="utf-8") for one in modules}
    return {one: re.sub(r"from tuner\.export\.\w+\.", "from .", text) for one, text in read.items()}


def _replaced(engine: Engine, kernel: str, made: dict[str, str]) -> tuple[str, str]:
    """Name what a plugin with these choices replaces, and when the engine calls it."""
    targets = ", ".join(f"`{one.target}`" for one in engine.hooks_of(kernel, made))
    if not targets:
        return "nothing", engine.why_not.get(kernel, "")
    return targets, engine.only.get(kernel, "every model")
