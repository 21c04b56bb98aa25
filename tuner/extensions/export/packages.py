"""What `tune export` makes of sessions in any format but C++: packages, plugins, trace sets."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path

from tuner.compiler.base import Compiler
from tuner.extensions.export.flashinfer.package import trace_files
from tuner.extensions.export.folder import as_argument, with_table, write_folder
from tuner.extensions.export.huggingface.package import kernels_files
from tuner.extensions.export.pytorch.package import OperatorFiles, package_files
from tuner.extensions.export.sources import template
from tuner.extensions.export.winners import Winners
from tuner.extensions.runtime.pytorch.replacing import Engine
from tuner.extensions.runtime.sglang.hooks import ENGINE as SGLANG
from tuner.extensions.runtime.vllm.hooks import ENGINE as VLLM
from tuner.model import TUNER_VERSION
from tuner.model.errors import InputError

# How its modules import one another.
SHIPPED = re.compile(r"from tuner\.extensions\.runtime\.\w+\.")
Format = Callable[[str, Sequence[OperatorFiles], str], Mapping[str, str | bytes]]
ENTRY_POINT = """
[project.entry-points."{group}"]
{package} = "{package}.{engine}:register"
"""


def plugin_files(
    engine: Engine, package: str, operators: Sequence[OperatorFiles], folder: str
) -> dict[str, str | bytes]:
    """Return all files of an engine's plugin: the package for PyTorch, hooks, entry point."""
    files, name = package_files(package, operators), engine.distribution
    choices = [(one.described.kernel, dict(one.choices)) for one in operators]
    replaced = []
    for kernel, made in choices:
        # What a plugin with these choices replaces, and when the engine calls it.
        targets = ", ".join(f"`{one.target}`" for one in engine.hooks_of(kernel, made))
        nothing = "nothing", engine.why_not.get(kernel, "")
        when = engine.only.get(kernel, "every model")
        replaced.append((kernel, *((targets, when) if targets else nothing)))
    values = {
        "package": package,
        "folder": as_argument(folder),
        "version": TUNER_VERSION,
        "engine": engine,
        "choices": choices,
        "replaced": replaced,
        "versions": ", ".join(engine.versions),
    }
    entry = ENTRY_POINT.format(group=engine.group, package=package, engine=name)
    files["pyproject.toml"] = f"{files['pyproject.toml']!s}{entry}"
    files["README.md"] = template(f"pytorch/{name}.md.j2").render(**values)
    files[f"{package}/{name}.py"] = template("pytorch/plugin.py.j2").render(**values)
    shipped = _read_runtime("pytorch", ("replacing", "adapting")) | _read_runtime(
        name, ("hooks", "plugin")
    )
    return files | {f"{package}/{one}.py": text for one, text in shipped.items()}


def _read_runtime(folder: str, modules: Iterable[str]) -> dict[str, str]:
    """Read modules of the runtime as one flat package has them."""
    here = resources.files(f"tuner.extensions.runtime.{folder}")
    read = {one: (here / f"{one}.py").read_text(encoding="utf-8") for one in modules}
    return {one: SHIPPED.sub("from .", text) for one, text in read.items()}


FORMATS: dict[str, Format] = {
    "torch": package_files,
    "sglang": partial(plugin_files, SGLANG),
    "vllm": partial(plugin_files, VLLM),
    "kernels": kernels_files,
    "flashinfer-trace": trace_files,
}
# What to do with what was written.
_INSTALL = "pip install {to}, then `import {package}`"
NEXT: dict[str, str] = {
    "torch": _INSTALL,
    "sglang": _INSTALL,
    "vllm": _INSTALL,
    "flashinfer-trace": "flashinfer-bench run --local {to}",
    "kernels": "kernels.get_local_kernel(Path({path!r}))",
}


def export_package(
    sessions: Sequence[Winners], to: Path, compiler: Compiler, package: str, form: str = "torch"
) -> None:
    """Write a package with an operator for each session to the folder `to`.

    Raises `InputError` for a name that it can't have, for two sessions of one kernel, and
    where the folder cannot be written or holds what is not ours.
    """
    if not package.isidentifier() or keyword.iskeyword(package):
        raise InputError(
            f"{package!r} is no name of a Python package",
            remedy="name one with letters, digits and _: --package tuned_kernels",
        )
    if package in FORMATS:
        raise InputError(
            f"a package named {package} would hide the one that it is for",
            remedy="name it otherwise: --package tuned_kernels",
        )
    kernels = [one.spec.name for one in sessions]
    for kernel in kernels:
        if kernels.count(kernel) > 1:
            raise InputError(
                f"{kernels.count(kernel)} sessions are of {kernel}",
                remedy="give one session for each kernel, and the others a package of their own",
            )
    operators = [OperatorFiles(one, compiler) for one in sessions]
    files = FORMATS[form](package, operators, str(to))
    content = {
        "tune": TUNER_VERSION,
        "package": package,
        "form": form,
        "operators": {
            one.spec.name: {
                "operators": dict(one.measured.operators),
                "axes": list(one.spec.axes),
                **({"constants": list(one.spec.constants)} if one.spec.constants else {}),
                "device": one.measured.device,
                "architecture": one.measured.architecture,
                "measured": one.measured.date,
                "verified_by": one.measured.verified_by or None,
                "made_from": {
                    "source": one.manifest.source_sha,
                    "space": one.manifest.space_sha,
                    "template": one.manifest.template_sha,
                },
            }
            for one in sessions
        },
    }
    write_folder(to, with_table(files, content))
