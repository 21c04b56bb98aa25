"""Import SGLang as it is on a machine without a GPU: stands in for its compiled dependencies.

Run as `python genuine_sglang.py PLUGIN`: it loads SGLang's plugins and prints what became of them.
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
    """A module that has every function; none of them can be called."""

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

        def function(*_: Any, **__: Any) -> Any:
            raise RuntimeError(f"{self.__name__}.{name} is a stand-in")

        function.__name__ = name
        setattr(self, name, function)
        return function


def stand_in() -> None:
    """Put fakes in place, and SGLang's own stub of Triton."""
    # PyTorch's compiler does without Triton, but not with a stub of it.
    importlib.import_module("torch._inductor.select_algorithm")
    for name in FAKED:
        sys.modules[name] = _Fake(name)
    package = PathFinder.find_spec("sglang", sys.path)
    assert package is not None
    assert package.submodule_search_locations is not None
    path = f"{next(iter(package.submodule_search_locations))}/_triton_stub.py"
    spec = importlib.util.spec_from_file_location("triton_stub", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.install()


def main(plugin: str) -> None:
    """Load the plugins, and say for each hook of ours whether SGLang's name is hooked."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    stand_in()
    registry: Any = importlib.import_module("sglang.srt.plugins.hook_registry")
    plugins: Any = importlib.import_module("sglang.srt.plugins")
    plugins.load_plugins()
    ours: Any = importlib.import_module(f"{plugin}.sglang")
    patched = sorted(registry.HookRegistry._patched)
    print(json.dumps({"patched": patched, "calls": ours.calls(), "enabled": sorted(ours.enabled)}))


if __name__ == "__main__":
    main(sys.argv[1])
