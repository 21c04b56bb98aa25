"""A Python in which SGLang can be imported without a GPU: runs the program that it is given.

`python engine_python.py SGLANG_TRITON_VERSION PROGRAM` has stand-ins for what is compiled.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from typing import Any

import genuine_sglang


def main() -> None:
    version, program = sys.argv[1:]
    for name in genuine_sglang.FAKED:
        sys.modules[name] = genuine_sglang._Fake(name)
    genuine_sglang.stand_in_for_triton()
    triton: Any = importlib.import_module("triton")
    triton.__version__ = version
    # Newer, for our own tests, than what SGLang's transformers can be imported beside.
    sys.modules["kernels"] = None  # type: ignore[assignment]
    sys.argv = [program]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
