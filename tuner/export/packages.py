"""`tune export --format torch`, `sglang` and `vllm`: sessions as one Python package."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tuner.compiler.base import Compiler
from tuner.export.folder import with_table, write_folder
from tuner.export.plugins import sglang_files, vllm_files
from tuner.export.pytorch.package import OperatorFiles, package_files
from tuner.export.winners import Winners
from tuner.model import TUNER_VERSION
from tuner.model.errors import InputError

Format = Callable[[str, Sequence[OperatorFiles], str], Mapping[str, str | bytes]]
FORMATS: dict[str, Format] = {
    "torch": package_files,
    "sglang": sglang_files,
    "vllm": vllm_files,
}


def export_package(
    sessions: Sequence[Winners], to: Path, compiler: Compiler, package: str, form: str = "torch"
) -> None:
    """Write a package with an operator for each session to the folder `to`.

    Raises `InputError` for a name that no package can have, for two sessions of one kernel, and
    where the folder cannot be written or holds what is not ours.
    """
    if not package.isidentifier() or keyword.iskeyword(package):
        raise InputError(
            f"{package!r} is no name of a Python package",
            remedy="name one with letters, digits and _: --package tuned_kernels",
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
        "operators": {one.spec.name: _described(one) for one in sessions},
    }
    write_folder(to, with_table(files, content))


def _described(one: Winners) -> Mapping[str, object]:
    return {
        "operators": dict(one.measured.operators),
        "axes": list(one.spec.axes),
        "device": one.measured.device,
        "architecture": one.measured.architecture,
        "measured": one.measured.date,
        "made_from": {
            "source": one.manifest.source_sha,
            "space": one.manifest.space_sha,
            "template": one.manifest.template_sha,
        },
    }
