"""Load SGLang's plugins in an SGLang without a GPU, and say as JSON what became of them.

`python genuine_sglang.py PLUGIN` imports all of SGLang; its compiled dependencies have stand-ins.
With `--loader` only its loader of plugins is imported, which needs no packages. With `--steps=PAGE`
decode steps are captured and replayed, in pages of so many tokens.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

FAKED = (
    "IPython",
    "IPython.display",
    "sgl_kernel",
    "torchvision",
    "torchvision.io",
    "torchvision.transforms",
    "torchvision.transforms.functional",
    "torchvision.transforms.v2",
    "torchvision.transforms.v2.functional",
)


class _Names(type):
    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _InterpolationMode(metaclass=_Names):
    pass


class _Fake(ModuleType):
    """A module that has every function; each returns its own name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__spec__ = ModuleSpec(name, None, is_package=True)
        self.__version__ = "1.0"
        if name.startswith("torchvision"):
            self.InterpolationMode = _InterpolationMode

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = sys.modules.get(f"{self.__name__}.{name}")
        if found is not None:
            return found

        def function(*_: Any, **__: Any) -> str:
            return name

        function.__name__ = name
        setattr(self, name, function)
        return function


def sglang_path() -> list[str]:
    """Find SGLang without importing it."""
    spec = PathFinder.find_spec("sglang", sys.path)
    assert spec is not None
    return list(spec.submodule_search_locations or ())


def stand_in_for_triton() -> None:
    """Put SGLang's own stub of Triton in place."""
    # PyTorch's compiler does without Triton, but not with a stub of it.
    importlib.import_module("torch._inductor.select_algorithm")
    spec = importlib.util.spec_from_file_location("stub", f"{sglang_path()[0]}/_triton_stub.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.install()


def load(plugin: str, *, only_loader: bool) -> dict[str, Any]:
    """Load the plugins, call one function by the name that another module has imported."""
    for name in FAKED:
        sys.modules[name] = _Fake(name)
    kernels: Any = sys.modules["sgl_kernel"]
    importer: Any = sys.modules.setdefault("importer", ModuleType("importer"))
    importer.norm = kernels.rmsnorm
    if only_loader:
        package = ModuleType("sglang")
        package.__path__ = sglang_path()
        sys.modules["sglang"] = package
    else:
        stand_in_for_triton()
    # Newer, for our own tests, than what SGLang's transformers can be imported beside.
    sys.modules["kernels"] = None  # type: ignore[assignment]
    plugins: Any = importlib.import_module("sglang.srt.plugins")
    plugins.load_plugins()
    torch: Any = importlib.import_module("torch")
    returned = importer.norm(torch.ones(2, 8), torch.ones(8))
    ours: Any = importlib.import_module(f"{plugin}.sglang")
    return {
        "hooked": sorted(plugins.HookRegistry._patched),
        "returned": returned,
        "calls": ours.calls(),
    }


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    said = load(sys.argv[1], only_loader="--loader" in sys.argv)
    for page in (one.removeprefix("--steps=") for one in sys.argv if one.startswith("--steps=")):
        steps = importlib.import_module("sglang_steps")
        said |= steps.steps(sys.argv[1], int(page))
    print(json.dumps(said))
