"""What `tune export` makes of sessions in any format but C++: packages, plugins, trace sets."""

from __future__ import annotations

import json
import keyword
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from importlib import resources
from pathlib import Path

from tuner.compiler.base import Compiler
from tuner.extensions.export.flashinfer.package import trace_files
from tuner.extensions.export.folder import as_argument, with_table, write_folder
from tuner.extensions.export.kernelbench import kernelbench_files
from tuner.extensions.export.pytorch.package import (
    OperatorFiles,
    capability,
    described_as,
    module_files,
    package_files,
)
from tuner.extensions.export.sources import template
from tuner.extensions.export.winners import Winners
from tuner.extensions.runtime.pytorch.replacing import Engine
from tuner.extensions.runtime.sglang.hooks import ENGINE as SGLANG
from tuner.extensions.runtime.vllm.hooks import ENGINE as VLLM
from tuner.model import TUNER_VERSION
from tuner.model.errors import InputError

# How its modules import one another.
SHIPPED = re.compile(r"from tuner\.extensions\.runtime\.\w+\.")
PackageFormat = Callable[[str, Sequence[OperatorFiles], str], Mapping[str, str | bytes]]
ENTRY_POINT = """
[project.entry-points."{group}"]
{package} = "{package}.{engine}:register"
"""


def plugin_files(
    engine: Engine, package: str, operators: Sequence[OperatorFiles], folder: str
) -> dict[str, str | bytes]:
    """Return all files of an engine's plugin: the package for PyTorch, hooks, entry point."""
    files, name = package_files(package, operators), engine.distribution
    choices = [(operator.described.kernel, dict(operator.choices)) for operator in operators]
    replaced = []
    for kernel, made in choices:
        # What a plugin with these choices replaces, and when the engine calls it.
        hooks = [hook for hook in engine.hooks_of(kernel, made) if not hook.around]
        targets = ", ".join(f"`{hook.target}`" for hook in hooks)
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
    shipped = _read_runtime("pytorch", ("replacing", "adapting")) | _read_runtime(name)
    return files | {f"{package}/{one}.py": text for one, text in shipped.items()}


def _read_runtime(folder: str, modules: Iterable[str] = ()) -> dict[str, str]:
    """Read modules of the runtime, or all of a folder, as one flat package has them."""
    here = resources.files(f"tuner.extensions.runtime.{folder}")
    names = sorted(each.name for each in here.iterdir() if each.name.endswith(".py"))
    modules = modules or [name.removesuffix(".py") for name in names if name != "__init__.py"]
    read = {module: (here / f"{module}.py").read_text(encoding="utf-8") for module in modules}
    return {one: SHIPPED.sub("from .", text) for one, text in read.items()}


# Of PyTorch's builds with CUDA all: the code is Python and cubins.
VARIANT = "build/torch-cuda"
# What a layer is called, by the operator and the choice that it is for.
LAYERS: Mapping[tuple[str, str], str] = {
    ("silu_and_mul", "silu"): "SiluAndMul",
    ("silu_and_mul", "gelu"): "GeluAndMul",
    ("silu_and_mul", "gelu_tanh"): "GeluTanhAndMul",
    ("rmsnorm", "false"): "RMSNorm",
    ("rmsnorm", "true"): "GemmaRMSNorm",
}
# How these are called: a kernel of the user's by the same name makes a layer only if it is too.
PASSED = {"silu_and_mul": "out, input", "rmsnorm": "out, x, w, eps=eps"}
_NAME = re.compile(r"[a-z][a-z0-9_]*[a-z0-9]")


def kernels_files(
    package: str, operators: Sequence[OperatorFiles], folder: str = "."
) -> dict[str, str | bytes]:
    """Return all files of a kernel repository by their names in `folder`.

    Raises `InputError` for a package whose name no kernel of the Hub can have.
    """
    if not _NAME.fullmatch(package) or "__" in package:
        raise InputError(
            f"{package!r} is no name of a kernel of the Hub",
            remedy="begin it with a small letter, and have only these, digits and single _ in it",
        )
    # What several versions may not share: the module and the namespace of its operators.
    digest, layers = sha256(), []
    for operator in operators:
        for name, content in sorted(operator.files.items()):
            digest.update(name.encode() + b"\0" + _bytes(content))
        kernel = operator.described.kernel
        choice = next(
            (each for each in operator.choices.values() if (kernel, each) in LAYERS), None
        )
        if choice and PASSED.get(kernel) == operator.described.passed:
            layers.append((LAYERS[kernel, choice], choice, kernel))
    identity = f"_{package}_cuda_{digest.hexdigest()[:7]}"
    values = {
        **described_as(package, operators),
        "identity": identity,
        "folder": folder,
        "layers": layers,
        "variant": VARIANT,
    }
    modules = module_files(package, operators, namespace=identity, layers=bool(layers))
    if layers:
        modules["layers.py"] = template("huggingface/layers.py.j2").render(**values)
    digests = {name: b64encode(sha256(_bytes(modules[name])).digest()) for name in sorted(modules)}
    metadata = {
        "name": package.replace("_", "-"),
        "id": identity,
        "version": 1,
        "license": "other",
        "python-depends": [],
        "backend": {
            "type": "cuda",
            "archs": sorted(
                {capability(operator.winners.measured.architecture) for operator in operators}
            ),
        },
        "digest": {
            "algorithm": "sha256",
            "files": {name: digest.decode() for name, digest in digests.items()},
        },
    }
    modules["metadata.json"] = json.dumps(metadata, indent=2) + "\n"
    return {
        "README.md": template("huggingface/README.md.j2").render(**values),
        **{f"{VARIANT}/{name}": content for name, content in modules.items()},
    }


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


FORMATS: dict[str, PackageFormat] = {
    "torch": package_files,
    "sglang": partial(plugin_files, SGLANG),
    "vllm": partial(plugin_files, VLLM),
    "kernels": kernels_files,
    "flashinfer-trace": trace_files,
    "kernelbench": kernelbench_files,
}
# What to do with what was written.
_INSTALL = "pip install {to}, then `import {package}`"
NEXT: dict[str, str] = {
    "torch": _INSTALL,
    "sglang": _INSTALL,
    "vllm": _INSTALL,
    "flashinfer-trace": "flashinfer-bench run --local {to}",
    "kernels": "kernels.get_local_kernel(Path({path!r}))",
    "kernelbench": "each file defines `ModelNew`",
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
    kernels = [session.spec.name for session in sessions]
    for kernel in kernels:
        if kernels.count(kernel) > 1:
            raise InputError(
                f"{kernels.count(kernel)} sessions are of {kernel}",
                remedy="give one session for each kernel, and the others a package of their own",
            )
    alone = form == "kernelbench"  # where nothing is faster than the baseline, that may be good
    operators = [OperatorFiles(session, compiler, with_baseline=alone) for session in sessions]
    files = FORMATS[form](package, operators, str(to))
    content = {
        "tune": TUNER_VERSION,
        "package": package,
        "form": form,
        "operators": {
            session.spec.name: {
                "operators": dict(session.measured.operators),
                "axes": list(session.spec.axes),
                **({"constants": list(session.spec.constants)} if session.spec.constants else {}),
                "device": session.measured.device,
                "architecture": session.measured.architecture,
                "measured": session.measured.date,
                "verified_by": session.measured.verified_by or None,
                "made_from": {
                    "source": session.manifest.source_sha,
                    "space": session.manifest.space_sha,
                    "template": session.manifest.template_sha,
                },
            }
            for session in sessions
        },
    }
    write_folder(to, with_table(files, content))
