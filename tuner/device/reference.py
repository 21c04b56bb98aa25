"""What a kernel's reference file defines: the float64 reference, its own inputs, and peers."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

from tuner.device.base import Program
from tuner.device.encoding import Array
from tuner.model.errors import DeviceError, KernelError, TooSlow, TunerError, WorkerError
from tuner.model.kernel import Workload
from tuner.model.settings import COMMAND
from tuner.model.trial import Status
from tuner.process.files import read_regular

ReferenceFunction = Callable[..., Mapping[str, Array]]
InputsFunction = Callable[..., Mapping[str, Array]]
CanonicalFunction = Callable[[Any, Mapping[str, Array], Mapping[str, int]], Mapping[str, Array]]
PeerFunction = Callable[..., Mapping[str, Any] | None]

_DEFINE = "define reference(xp, inputs, axes, **operator) -> {output name: array}"

_EXAMPLE = 'peers = {"pytorch": pytorch}, with def pytorch(tensors, axes, **operator)'

_NEIGHBOURS = 'neighbours = {"router": router}, with def router(tensors, axes, **operator)'

# Less than a verifier is waited for (VERIFIER_TIMEOUT_S), so that the file is named.
LIMIT_S = 100.0
_SHORTER = "it may have a loop without end; else compute on whole arrays, or on smaller workloads"

_NO_EXIT = (
    'put what runs it as a program under `if __name__ == "__main__":`; '
    "where a function cannot go on, let it raise an exception"
)


@dataclass(frozen=True, slots=True)
class Reference:
    """The independent float64 reference and, where the operator needs them, its own inputs.

    `canonical` brings outputs of which several are right into the form that the reference gives;
    `unread` sets what production never reads of a peer's outputs to what the reference gives.
    `replaced` tells whether the inputs drawn last are ordinary ones, whatever kind was asked for.
    `spreads` gives the deviation of what is drawn for an input, where that is not 1.
    A `fixed` one knows the answer to its own inputs alone, which are never changed. `rounded`
    computes with operands of TF32, where PyTorch computes.
    """

    compute: ReferenceFunction
    inputs: InputsFunction | None = None
    canonical: CanonicalFunction | None = None
    unread: CanonicalFunction | None = None
    replaced: Callable[[], bool] = lambda: False
    spreads: Callable[[Mapping[str, int]], Mapping[str, float]] = lambda axes: {}
    fixed: bool = False
    rounded: ReferenceFunction | None = None

    def drawn(
        self, xp: Any, rng: Any, axes: Mapping[str, int], fill: str, operators: Mapping[str, str]
    ) -> Mapping[str, Array]:
        """Draw the reference's own inputs, with the operator's choices that it asks for by name."""
        if self.inputs is None:
            return {}
        wanted = signature(self.inputs).parameters
        return self.inputs(
            xp, rng, axes, fill, **{name: operators[name] for name in wanted if name in operators}
        )


def load_reference(path: Path) -> Reference:
    """Import a kernel's reference file; raise `KernelError`, with the line, where it cannot serve.

    The file defines `reference(xp, inputs, axes, **operator)` and may define
    `inputs(xp, rng, axes, fill)`, which returns values for the arguments it names (and takes the
    operator's choices that it has parameters for),
    `canonical(xp, outputs, axes)`, which returns stored outputs in the reference's order, and
    `unread(xp, outputs, axes)`, the same for what production never reads of a peer's outputs.
    `fixed = True` says that the answer is one to its own inputs alone.
    """
    module = _import_file(path)
    compute = getattr(module, "reference", None)
    if not callable(compute):
        raise KernelError("defines no `reference` function", path=path, remedy=_DEFINE)
    _require_three(path, compute)
    names = ("inputs", "canonical", "unread")
    inputs, canonical, unread = (getattr(module, name, None) for name in names)
    fixed = bool(getattr(module, "fixed", False))
    return Reference(compute, inputs, canonical, unread, fixed=fixed)


def _require_three(path: Path, compute: Callable[..., Any]) -> None:
    """Raise `KernelError` where a reference doesn't take what it is called with."""
    try:
        # What the operator's choices are is checked when it is called with them.
        signature(compute).bind_partial(None, None, None)
    except ValueError:
        return  # nobody knows what it takes
    except TypeError as error:
        raise KernelError(
            "`reference` takes fewer than `xp`, `inputs` and `axes`",
            path=path,
            line=compute.__code__.co_firstlineno if isinstance(compute, FunctionType) else None,
            remedy=_DEFINE,
        ) from error


def _may_define(path: Path, name: str) -> bool:
    """Tell whether a file has a name at all: importing one that imports PyTorch takes seconds."""
    if path.suffix != ".py":
        return True
    text = read_regular(path)
    return name.encode() in text or re.search(rb"import\s*\*", text) is not None


def _import_file(path: Path) -> ModuleType:
    if path.suffix in (".yaml", ".yml", ".json"):
        # A search space or a definition that holds its reference: it has no peers.
        return ModuleType(f"reference_{path.stem}")
    module_spec = importlib.util.spec_from_file_location(f"reference_{path.stem}", path)
    if module_spec is None or module_spec.loader is None:
        raise KernelError("is not a Python file", path=path)
    module = importlib.util.module_from_spec(module_spec)
    with blamed_on(path, "cannot be imported"):
        # Not by the loader, which may take other code than the text's from __pycache__.
        exec(compile(read_regular(path), path, "exec"), module.__dict__)  # noqa: S102
    return module


@contextmanager
def blamed_on(path: Path, what: str, *, limit_s: float = LIMIT_S) -> Iterator[None]:
    """Turn whatever code of the user's file raises into one `KernelError` at its line.

    In the main thread so does code that has not ended after `limit_s`.
    """
    with limit_time(path, limit_s):
        try:
            yield
        except (TunerError, MemoryError, KeyboardInterrupt, _OverTime):
            raise
        except BaseException as error:
            if ran_out(error):  # in PyTorch's words
                raise MemoryError(_text_of(error)) from None
            line = error.lineno if isinstance(error, SyntaxError) else line_in(path, error)
            text = _text_of(error)
            message = f"{what}: {type(error).__name__}{text and f': {text}'}"
            remedy = _NO_EXIT if isinstance(error, SystemExit) else None
            raise KernelError(message, path=path, line=line, remedy=remedy) from error


class _OverTime(BaseException):  # no error that anybody expects and catches
    def __init__(self, frame: FrameType | None) -> None:
        self.frame = frame


@contextmanager
def limit_time(path: Path, limit_s: float) -> Iterator[None]:
    """Raise `KernelError` where the code computes longer, unless a limit is set already."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or any(signal.getitimer(signal.ITIMER_REAL)):
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise _OverTime(frame)

    before = signal.signal(signal.SIGALRM, end)
    # Once more each second: the code may have caught the first.
    signal.setitimer(signal.ITIMER_REAL, limit_s, 1.0)
    try:
        yield
    except _OverTime as over:
        frame = over.frame
        while frame is not None and frame.f_code.co_filename != str(path):
            frame = frame.f_back
        line = None if frame is None else frame.f_lineno
        message = f"computes for over {limit_s:g} s"
        raise TooSlow(message, path=path, line=line, remedy=_SHORTER) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def line_in(path: Path, error: BaseException) -> int | None:
    """Find the last line of a file that an error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return lines[-1] if lines else None


def require_dict(path: Path, function: str, returned: object, names: Iterable[str]) -> None:
    """Raise `KernelError` unless a function of the file returned a dict, with these `names`."""
    if not isinstance(returned, Mapping):
        kind = "None" if returned is None else f"a value of type {type(returned).__name__}"
        wrong = f"`{function}` returns {kind}, not a dict of arrays by name"
        raise misfit(path, function, wrong, returning(names))


def returning(names: Iterable[str]) -> str:
    return f"return {{{', '.join(f'{name!r}: ...' for name in names)}}}"


def misfit(path: Path, function: str, wrong: str, remedy: str) -> KernelError:
    """Make the error for what a function of the file returns, at its line."""
    line = _line_of(path, function) if path.suffix == ".py" else None
    return KernelError(wrong, path=path, line=line, remedy=remedy)


class PeerError(WorkerError):
    """Report a peer that failed, with the status of its trial.

    `not_recorded` is one that is not installed (ImportError), `constraint` one that has no
    counterpart of this operator or shape (NotImplementedError). `sticky` says that it may have
    left its process unusable.
    """

    def __init__(self, message: str, *, status: Status = Status.LAUNCH) -> None:
        super().__init__(message)
        self.status, self.sticky = status, True


_LONGEST_REASON = 2000
_MEMORY_ERRORS = frozenset({("torch", "OutOfMemoryError")})
_MEMORY_TEXTS = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "CUDA error: out of memory",
    "Triton Error [CUDA]: out of memory",
)
_RESOURCE_ERRORS = frozenset({("triton", "OutOfResources")})


@contextmanager
def blamed_on_peer(file: Path, before_line: str) -> Iterator[None]:
    """Turn whatever a peer or a Python kernel raises into a `PeerError` with its line and status.

    `file` is what tracebacks call its text, `before_line` what is told before the line. What is
    not installed is `not_recorded`, `NotImplementedError` a `constraint`, and too little memory, of
    whichever kind, a `resource_limit`.
    """
    try:
        yield
    except WorkerError:
        raise
    except ImportError as error:
        text = _text_of(error)[:_LONGEST_REASON]
        raise PeerError(text, status=Status.NOT_RECORDED) from error
    except NotImplementedError as error:
        text = _text_of(error)[:_LONGEST_REASON]
        raise PeerError(text, status=Status.CONSTRAINT) from error
    except KernelError as error:
        raise PeerError(str(error)) from error
    except (Exception, SystemExit) as error:
        line = line_in(file, error)
        place = f"{before_line}{line}: " if line else ""
        text = f"{place}{type(error).__name__}: {_text_of(error)}"
        lacks_memory = ran_out(error) or _is_one_of(error, _RESOURCE_ERRORS)
        status = Status.RESOURCE_LIMIT if lacks_memory else Status.LAUNCH
        raise PeerError(text[:_LONGEST_REASON], status=status) from error


def ran_out(error: BaseException | None) -> bool:
    """Whether memory ended, the system's or PyTorch's; not the shared memory of a GPU's blocks."""
    if isinstance(error, MemoryError) or _is_one_of(error, _MEMORY_ERRORS):
        return True
    # Some allocators raise no error of their own: only the text tells.
    return isinstance(error, RuntimeError) and any(t in _text_of(error) for t in _MEMORY_TEXTS)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as another:  # noqa: BLE001 - code of the user's
        return f"its text raises {type(another).__name__}"


def _is_one_of(error: BaseException | None, names: frozenset[tuple[str, str]]) -> bool:
    """Tell PyTorch's and Triton's own errors by their names: neither need be installed."""
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
    return not kinds.isdisjoint(names)


def load_peers(path: Path) -> dict[str, PeerFunction]:
    """Import a reference file's `peers`; raise `KernelError` unless they are functions by name."""
    return load_functions(path, "peers")


def load_functions(path: Path, group: str) -> dict[str, PeerFunction]:
    """Import a reference file's `peers` or `neighbours`: functions by name.

    Raises `KernelError` for what is none.
    """
    if not _may_define(path, group):
        return {}
    module = _import_file(path)
    # torch.compile and Triton look up a function's module by its name.
    sys.modules[module.__name__] = module
    functions = getattr(module, group, {})
    wrong = ""
    if not isinstance(functions, Mapping):
        wrong, functions = f"`{group}` is a {type(functions).__name__}, not a dict", {}
    for name, function in functions.items():
        if not (isinstance(name, str) and name.split() == [name]):
            wrong = wrong or f"`{group}` has the name {name!r}: a text without spaces is needed"
        elif not callable(function):
            wrong = (
                wrong or f"the {group[:-1]} {name!r} is a {type(function).__name__}, no function"
            )
    if wrong:
        line = _line_of(path, group)
        remedy = f"write {_EXAMPLE}" if group == "peers" else f"write {_NEIGHBOURS}"
        raise KernelError(wrong, path=path, line=line, remedy=remedy)
    return dict(functions)


def chosen_peers(path: Path, names: Iterable[str], own: Iterable[str] = ()) -> tuple[str, ...]:
    """Return a file's peers by name, all without `names`; raise `KernelError` for unknown ones.

    `own` are those that it has without naming them.
    """
    peers = dict.fromkeys([*own, *load_peers(path)])
    if not peers:
        raise KernelError(
            "names no peers", path=path, remedy=f"write {_EXAMPLE}; or leave --peers out"
        )
    wanted = tuple(dict.fromkeys(names)) or tuple(peers)
    unknown = [name for name in wanted if name not in peers]
    if unknown:
        raise KernelError(
            f"has no peer named {', '.join(map(repr, unknown))}",
            path=path,
            line=_line_of(path, "peers") if path.suffix == ".py" else None,
            remedy=f"its peers: {', '.join(peers)}",
        )
    return wanted


def load_production(
    path: Path, axes: Mapping[str, int], operators: Mapping[str, str]
) -> str | None:
    """Name the peer that production calls for these axes; None where the file does not say.

    `production` is a peer's name, or a function `production(axes, **operator)` that returns one, or
    None where production has nothing for this choice. Raises `KernelError` for anything else.
    """
    if not _may_define(path, "production"):
        return None
    module = _import_file(path)
    named = getattr(module, "production", None)
    if callable(named):
        with blamed_on(path, "`production` fails"):
            named = named(dict(axes), **operators)
    if named is None or (isinstance(named, str) and named in getattr(module, "peers", {})):
        return named
    peers = ", ".join(map(str, getattr(module, "peers", {}))) or "none"
    raise KernelError(
        f"`production` is {named!r}, which is none of its peers",
        path=path,
        line=_line_of(path, "production"),
        remedy=f'write production = "NAME" or def production(axes, **operator); peers: {peers}',
    )


@cache
def torch_operators(package: str, libraries: str) -> Any:
    """Register a package's operators with PyTorch and return them (`torch.ops.PACKAGE`).

    For peers. Where importing the package fails, though it is there, its library is loaded by
    itself: the first file in its folder that `libraries` matches. Raises `ImportError`.
    """
    torch: Any = import_module("torch")
    try:
        import_module(package)
    except ImportError as error:
        module_spec = importlib.util.find_spec(package)
        folders = (module_spec and module_spec.submodule_search_locations) or ()
        files = [file for folder in folders for file in sorted(Path(folder).glob(libraries))]
        if not files:
            raise
        try:
            torch.ops.load_library(files[0])
        except OSError as failed:
            raise ImportError(f"{error}; {files[0].name}: {failed}") from failed
    return getattr(torch.ops, package)


def require_gpu(device: str) -> None:
    if device == "host" or device.startswith(COMMAND):
        raise DeviceError(
            f"peers run on a GPU only, not on --device {device}",
            remedy="use a GPU (--device cuda) or a recording that has them (--device recorded), "
            "or leave --peers out",
        )


def peer_program(name: str, reference: Path, workload: Workload) -> Program:
    """Make what a device runs for a peer: no cubin and no launches, only its name."""
    text = read_regular(reference)
    key = hashlib.sha256(b"\0".join((b"peer", name.encode(), text))).hexdigest()
    return Program(key, workload, (), peer=name)


def _line_of(path: Path, name: str) -> int | None:
    """Find where a file assigns a name, or defines a function of that name."""
    for node in ast.parse(read_regular(path)).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        named = [target.id for target in targets if isinstance(target, ast.Name)]
        if name in named or (isinstance(node, ast.FunctionDef) and node.name == name):
            return node.lineno
    return None
