"""Calling kernels in Python: from the text of a module to a function over PyTorch tensors."""

from __future__ import annotations

import ast
import linecache
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

from tuner.compiler.cache import user_cache_dir
from tuner.compiler.python_code import extract_launch_code
from tuner.device.base import Program
from tuner.device.reference import PeerError, blamed_on_peer
from tuner.model.trial import Status

# Modules whose state is kept from call to call: what is right only in a first call shows.
MOST_MODULES = 64

CalledFunction = Callable[..., Mapping[str, Any] | None]


def compile_in_place() -> None:
    """Have torch.compile compile in this process, and keep what it makes in our cache folder."""
    # This process may be killed, and others of its own would survive it.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(user_cache_dir() / "inductor"))


class Originals:
    """Functions of a module as they are before a kernel's own code runs in this process."""

    def __init__(self, module: ModuleType, *names: str) -> None:
        self._module, self._kept = module, {name: getattr(module, name) for name in names}

    def require(self) -> None:
        """Put back what was replaced; raise `PeerError` if anything was."""
        current = {name: getattr(self._module, name, None) for name in self._kept}
        replaced = [name for name, function in self._kept.items() if current[name] is not function]
        for name in replaced:
            setattr(self._module, name, self._kept[name])
        if replaced:
            reason = f"replaces {self._module.__name__}.{replaced[0]}, by which calls are timed"
            raise PeerError(reason, status=Status.INCORRECT)


class Modules:
    """The modules of programs by their key; of many the oldest are forgotten.

    `source` is the kernel's own file: what they take for theirs, to find what lies beside it.
    """

    def __init__(self, source: Path) -> None:
        self._source = source
        self._loaded: OrderedDict[str, ModuleType] = OrderedDict()

    def function(self, program: Program) -> CalledFunction:
        """Return what calls a program's `launch` with its config; raise `PeerError` if it can't."""
        module = self._module(program)

        def call_launch(
            tensors: Mapping[str, Any], axes: Mapping[str, int], **operators: str
        ) -> Mapping[str, Any] | None:
            config = None if module.CONFIG is None else dict(module.CONFIG)
            result: Mapping[str, Any] | None = module.launch(config, tensors, axes, **operators)
            return result

        return call_launch

    def import_ahead(self, program: Program) -> None:
        """Execute a module, and the imports of all functions that its `launch` reaches.

        An import that finds nothing is passed over, for `launch` may know another way. Raises
        `PeerError` where one breaks off: another attempt in this process may say something else.
        """
        self._module(program)
        with blamed_on_call(program):
            for statement in late_imports(program.cubin.decode()):
                code = compile(ast.Module([statement], []), "<import>", "exec")
                try:
                    exec(code, {})  # noqa: S102
                except ImportError as error:
                    assert error.__traceback__ is not None
                    own = error.__traceback__.tb_next
                    if own is not None and own.tb_next is not None:
                        raise  # out of a module, which was executed in part

    def _module(self, program: Program) -> ModuleType:
        key = program.text_key
        if key in self._loaded:
            self._loaded.move_to_end(key)
            return self._loaded[key]
        with blamed_on_call(program):
            module = execute_module(program.cubin.decode(), key, self._source)
        self._loaded[key] = module
        while len(self._loaded) > MOST_MODULES:
            forget(*self._loaded.popitem(last=False))
        return module


def execute_module(text: str, key: str, source: Path) -> ModuleType:
    """Execute a module's text; `source` is what it takes for its file."""
    # Triton reads the text of its functions: by this name linecache has it, no file does.
    name, place = f"tune_{key[:24]}", place_of(key)
    linecache.cache[place] = (len(text), None, text.splitlines(keepends=True), place)
    module = ModuleType(name)
    module.__file__ = str(source)
    sys.modules[name] = module
    exec(compile(text, place, "exec"), module.__dict__)  # noqa: S102
    return module


def late_imports(text: str) -> Iterator[ast.stmt]:
    """Yield the imports that a module leaves to the calls of its `launch`, whatever its config.

    Those behind a condition are left out: they may change what others do, and never be wanted.
    """
    return _imports(ast.parse(extract_launch_code(text)), called=False)


def _imports(node: ast.AST, *, called: bool) -> Iterator[ast.stmt]:
    match node:
        case ast.Import() | ast.ImportFrom():
            if called:
                yield node
        case ast.If() | ast.Match():
            return
        case _:
            called = called or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for child in ast.iter_child_nodes(node):
                yield from _imports(child, called=called)


def forget(key: str, module: ModuleType) -> None:
    """Let go of a module that was executed."""
    sys.modules.pop(module.__name__, None)
    linecache.cache.pop(place_of(key), None)


def place_of(key: str) -> str:
    """Name what stands for the file of a module in tracebacks."""
    return f"<{key[:24]}>"


def blamed_on_call(program: Program) -> AbstractContextManager[None]:
    """Turn whatever a Python kernel raises into a `PeerError` with its line and status."""
    return blamed_on_peer(Path(place_of(program.text_key)), "line ")


def checked_results(
    torch: Any, returned: Any, tensors: Mapping[str, Any], outputs: Sequence[str]
) -> Mapping[str, Any]:
    """Require outputs of the right type and shape: a conversion would be part of the work.

    Types are exact: what only passes for a dict or a tensor may do the work when it is looked at.
    """
    if returned is None:
        return {}
    remedy = f"return {{{outputs[0]!r}: tensor}}, or write into the tensors and return None"
    if type(returned) is not dict:
        raise PeerError(f"returns {_describe_result(returned)}, no dict of outputs: {remedy}")
    for name, result in returned.items():
        if type(name) is not str or name not in outputs:
            raise PeerError(f"returns {name!r}, which is none of the outputs {', '.join(outputs)}")
        if type(result) is not torch.Tensor:
            raise PeerError(
                f"returns {_describe_result(result)} for {name!r}, not a tensor: {remedy}"
            )
        found, wanted = (
            f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device.type}"
            for tensor in (result, tensors[name])
        )
        if found != wanted:
            raise PeerError(f"returns {name!r} as {found}, not {wanted}", status=Status.INCORRECT)
    return returned


def _describe_result(value: object) -> str:
    """Name what was returned; of a list or tuple also what its first element is."""
    first = f" of {type(value[0]).__name__}" if isinstance(value, list | tuple) and value else ""
    return f"a {type(value).__name__}{first}"
