"""Write sessions' variants as a plugin of SGLang: the package for PyTorch, hooks, entry point."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from tuner.export.pytorch.package import OperatorFiles, package_files, template
from tuner.export.sglang.hooks import ONLY, VERSIONS, WHY_NOT, hooks_of
from tuner.model import TUNER_VERSION

# Shipped as they are.
SHIPPED = ("hooks.py", "plugin.py")
ENTRY_POINT = """
[project.entry-points."sglang.srt.plugins"]
{package} = "{package}.sglang:register"
"""


def sglang_files(
    package: str, operators: Sequence[OperatorFiles], folder: str = "."
) -> dict[str, str | bytes]:
    """Return all files of a plugin by their names in `folder`, which its README installs."""
    files = package_files(package, operators)
    choices = [(one.described.kernel, dict(one.choices)) for one in operators]
    values = {
        "package": package,
        "folder": folder,
        "version": TUNER_VERSION,
        "choices": choices,
        "replaced": [(name, *_replaced(name, made)) for name, made in choices],
        "versions": ", ".join(VERSIONS),
    }
    files["pyproject.toml"] = f"{files['pyproject.toml']!s}{ENTRY_POINT.format(package=package)}"
    files["README.md"] = template("sglang/README.md.j2").render(**values)
    files[f"{package}/sglang.py"] = template("sglang/entry.py.j2").render(**values)
    here = resources.files("tuner.export.sglang")
    return files | {f"{package}/{one}": (here / one).read_text(encoding="utf-8") for one in SHIPPED}


def _replaced(name: str, made: dict[str, str]) -> tuple[str, str]:
    """Name what a plugin with these choices replaces, and when SGLang calls it."""
    targets = ", ".join(f"`{one.target}`" for one in hooks_of(name, made))
    if not targets:
        return "nothing", WHY_NOT.get(name, "")
    return targets, ONLY.get(name, "every model")
