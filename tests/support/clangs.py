"""Which tests need a clang that compiles HIP, and programs that say to be one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.extensions.backends.hip.compiler import find_clang
from tuner.model.errors import DeviceError
from tuner.model.hardware import DEFAULT_TARGET


def compiles_for(target: str) -> bool:
    """Tell whether a clang that is installed here knows a target."""
    try:
        find_clang(target)
    except DeviceError:
        return False
    return True


needs_clang = pytest.mark.skipif(
    not compiles_for(DEFAULT_TARGET),
    reason="needs clang 17 or later with lld (apt install clang-19 lld-19)",
)
OLD_TARGETS = ("gfx90a", "gfx942", "gfx1100")


def stand_in(
    folder: Path,
    name: str,
    version: str,
    *,
    lld: bool = True,
    targets: tuple[str, ...] = OLD_TARGETS,
) -> Path:
    """Write a program that says to be a clang of a version, which knows some targets."""
    folder.mkdir(parents=True, exist_ok=True)
    linker = folder / "lld"
    if lld:
        linker.write_text("#!/bin/sh\n")
        linker.chmod(0o755)
    path = folder / name
    path.write_text(f"""#!/bin/sh
case "$*" in
  --version) echo "clang version {version}";;
  *--print-supported-cpus) printf "\\t%s\\n" {" ".join(targets)} >&2;;
  *) echo {linker};;
esac
""")
    path.chmod(0o755)
    return path
