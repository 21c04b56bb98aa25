"""Import the files of a pull request in an engine's tree without a GPU; say as JSON what is there.

`python pull_requests.py ENGINE FOLDER` has the engine's Python on its path, with stand-ins for what
is compiled.
"""

from __future__ import annotations

import importlib
import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any


def load(folder: Path, pattern: str) -> Any:
    """Import the one file that a pattern finds, by its name in the engine."""
    (path,) = folder.glob(pattern)
    place = path.relative_to(folder / "python" if pattern.startswith("python") else folder)
    name = ".".join(place.with_suffix("").parts)
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def sglang(folder: Path) -> dict[str, Any]:
    """Ask SGLang's parser of registrations, its registry and its benchmark framework."""
    import genuine_sglang

    for name in genuine_sglang.FAKED:
        sys.modules[name] = genuine_sglang._Fake(name)
    genuine_sglang.stand_in_for_triton()
    importlib.import_module("triton").__version__ = "3.6.0"
    sys.modules["kernels"] = None  # type: ignore[assignment]
    wrapper = load(folder, "python/sglang/kernels/ops/*/*.py")
    test = load(folder, "test/registered/kernels/ops/*/*.py")
    bench = load(folder, "test/registered/kernels/benchmark/*/*.py")
    register = importlib.import_module("sglang.test.ci.ci_register")
    registry = importlib.import_module("sglang.kernels.registry")
    (found,), has_main = register.ut_parse_one_file(test.__file__)
    name = Path(wrapper.__file__).stem
    group = Path(wrapper.__file__).parent.name
    spec = importlib.import_module("sglang.kernels.spec")
    specs = {
        one
        for value in vars(registry).values()
        if isinstance(value, registry.KernelRegistry)
        for one in value.get(f"{group}.{name}")
    }
    (own,) = specs
    return {
        "suite": found.effective_suite,
        "runs_by_itself": has_main,
        "seconds": found.est_time,
        "loads": own.load() is getattr(wrapper, name),
        "backend": own.backend is spec.KernelBackend.JIT,
        "columns": bench.benchmark._line_vals,
        "rows": [value for (_, values) in bench.benchmark._configs for (value,) in values],
        "proved": wrapper.PROVED,
    }


def vllm(folder: Path) -> dict[str, Any]:
    """Ask vLLM's tracer of dispatches."""
    import genuine_vllm

    genuine_vllm.stand_in_for_kernels()
    wrapper = load(folder, "vllm/kernels/cuda/*.py")
    kernel = wrapper._kernel
    (key,) = kernel.get_warmup_keys()
    return {
        "key": kernel.compile_key({"capability": (9, 0)}) == key,
        "traced": kernel._trace_dispatch(kernel.dispatch)(capability=[(9, 0)]) == [key],
        "compiled": list(kernel._compiled_cache),
        "proved": wrapper.PROVED,
    }


if __name__ == "__main__":
    asked = {"sglang": sglang, "vllm": vllm}[sys.argv[1]]
    print(json.dumps(asked(Path(sys.argv[2]))))
