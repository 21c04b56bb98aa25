"""Parse a Python file: its kernels of Triton or Helion, and the functions that launch them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tuner.extensions.draft.python.literals import Literals, bindings
from tuner.model.errors import KernelError
from tuner.process.files import read_regular

TRITON, HELION = "Triton", "Helion"
_MOST_BYTES = 2_000_000
# A function of these names shows or checks the kernel; who uses it calls another.
_TRIALS = ("test", "bench", "main", "run_", "check", "profile")
_LAUNCHER = (
    "a draft starts from a Python function that takes tensors, computes the grid and calls "
    "`{kernel}[grid](...)`: put one into this file"
)


@dataclass(frozen=True, slots=True)
class Decoration:
    """One decorator of a kernel, the outermost first: its dotted name's end, and its call."""

    name: str
    call: ast.Call | None
    line: int


@dataclass(frozen=True, slots=True)
class PythonKernel:
    """A function that Triton or Helion compiles; `parameters` are in order."""

    name: str
    kind: str
    node: ast.FunctionDef
    decorations: tuple[Decoration, ...]

    @property
    def line(self) -> int:
        return self.node.lineno

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(argument.arg for argument in all_arguments(self.node))

    @property
    def constexprs(self) -> dict[str, ast.expr | None]:
        """The parameters that Triton compiles in, each with its default."""
        defaults = defaults_of(self.node)
        return {
            argument.arg: defaults.get(argument.arg)
            for argument in all_arguments(self.node)
            if argument.annotation is not None and "constexpr" in ast.unparse(argument.annotation)
        }

    def decoration(self, name: str) -> Decoration | None:
        return next((one for one in self.decorations if one.name == name), None)

    @property
    def autotune(self) -> ast.Call | None:
        """The call of Triton's autotuner, where one decorates it."""
        decoration = self.decoration("autotune")
        return decoration.call if decoration is not None else None


@dataclass(frozen=True, slots=True)
class PythonLaunchSite:
    """`kernel[grid](...)`, or the call of a kernel of Helion, and the function that it is in."""

    kernel: str
    call: ast.Call
    host: ast.FunctionDef | None
    owner: str | None = None

    @property
    def line(self) -> int:
        return self.call.lineno


@dataclass(frozen=True)
class PythonSource:
    """The parsed file with its kernels by name."""

    path: Path
    text: str
    tree: ast.Module
    kernels: Mapping[str, PythonKernel]

    @cached_property
    def literals(self) -> Literals:
        return Literals(self.tree)

    @cached_property
    def sites(self) -> tuple[PythonLaunchSite, ...]:
        """All launches, in order."""
        return tuple(_sites(self.tree, frozenset(self.kernels)))

    @cached_property
    def globals(self) -> frozenset[str]:
        """The names that the module itself defines or imports."""
        return frozenset(_bindings(self.tree.body))

    def error(self, message: str, line: int | None, remedy: str | None = None) -> KernelError:
        return KernelError(message, path=self.path, line=line, remedy=remedy)

    def choose_kernel(self, name: str | None) -> PythonKernel:
        """Choose the kernel by its name, or the only one that is launched.

        Raises `KernelError` with the list of them.
        """
        if name is not None:
            if name not in self.kernels:
                known = ", ".join(self.kernels)
                raise self.error(f"has no kernel {name!r}", None, f"its kernels: {known}")
            return self.kernels[name]
        launched = {site.kernel for site in self.sites}
        helion = {kernel.name for kernel in self.kernels.values() if kernel.kind == HELION}
        called = {
            call.func.id
            for own, kernel in self.kernels.items()
            for call in calls_in(kernel.node)
            if isinstance(call.func, ast.Name) and call.func.id != own
        }
        names = [n for n in self.kernels if n in launched or n in helion]
        names = names or [n for n in self.kernels if n not in called] or [*self.kernels]
        if len(names) == 1:
            return self.kernels[names[0]]
        raise self.error(
            f"has {len(names)} kernels: {', '.join(names)}",
            self.kernels[names[1]].line,
            f"choose one, such as --kernel {names[0]}",
        )

    def launched_by(
        self, kernel: PythonKernel
    ) -> tuple[ast.FunctionDef, tuple[PythonLaunchSite, ...]]:
        """Find the function that launches a kernel of Triton, and where it does.

        Raises `KernelError` where there is none that a draft could call.
        """
        sites = [site for site in self.sites if site.kernel == kernel.name]
        remedy = _LAUNCHER.format(kernel=kernel.name)
        if not sites:
            raise self.error(f"nothing launches {kernel.name} here", kernel.line, remedy)
        hosts = [site.host for site in sites if site.host is not None]
        if not hosts:
            message = f"{kernel.name} is launched outside of any function"
            raise self.error(message, sites[0].line, remedy)
        plain = [host for host in hosts if not host.name.lower().startswith(_TRIALS)]
        host = (plain or hosts)[0]
        site = next(site for site in sites if site.host is host)
        first = next(iter(all_arguments(host)), None)
        if site.owner is not None and first is not None and first.arg in ("self", "cls"):
            message = f"{kernel.name} is launched in a method, {site.owner}.{host.name}"
            raise self.error(message, site.line, remedy)
        return host, tuple(site for site in sites if site.host is host)


def read_python(path: Path) -> PythonSource:
    """Parse a file with its kernels, which may be none; raise `KernelError` where that fails."""
    try:
        text = read_regular(path, _MOST_BYTES).decode("utf-8-sig")
        tree = ast.parse(text)
    except FileNotFoundError as error:
        raise KernelError("no such file", path=path) from error
    except OSError as error:
        raise KernelError(f"cannot be read: {error.strerror}", path=path) from error
    except SyntaxError as error:
        message = f"is not Python: {error.msg}"
        raise KernelError(message, path=path, line=error.lineno) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise KernelError(f"is not Python: {error}", path=path) from error
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            imported |= {o.asname or o.name: f"{node.module or ''}.{o.name}" for o in node.names}
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    read = (_kernel(node, imported) for node in functions)
    kernels = {kernel.name: kernel for kernel in read if kernel is not None}
    ordered = dict(sorted(kernels.items(), key=lambda pair: pair[1].line))
    return PythonSource(path, text, tree, ordered)


def holds_kernel(path: Path) -> bool:
    """Tell whether a .py file holds a kernel of Triton or Helion."""
    try:
        return path.suffix == ".py" and bool(read_python(path).kernels)
    except KernelError:
        return False


def all_arguments(node: ast.FunctionDef) -> list[ast.arg]:
    """List a function's parameters, those that only have names too."""
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def calls_in(node: ast.AST) -> list[ast.Call]:
    """List all calls in a piece of code."""
    return [call for call in ast.walk(node) if isinstance(call, ast.Call)]


def argument_of(call: ast.Call, name: str, place: int | None = None) -> ast.expr | None:
    """Give what a call passes under a name, or at its place before all names."""
    if place is not None and len(call.args) > place:
        return call.args[place]
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def passed_to(names: Iterable[str], call: ast.Call) -> dict[str, ast.expr]:
    """Map parameters to what a call passes, as far as it names them."""
    named = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    return dict(zip(names, call.args, strict=False)) | named


def defaults_of(node: ast.FunctionDef) -> dict[str, ast.expr]:
    """Map parameters to their defaults, where they have one."""
    positional = [*node.args.posonlyargs, *node.args.args]
    last = positional[len(positional) - len(node.args.defaults) :]
    found = dict(zip((one.arg for one in last), node.args.defaults, strict=True))
    named = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    return found | {one.arg: value for one, value in named if value is not None}


def _kernel(node: ast.FunctionDef, imported: Mapping[str, str]) -> PythonKernel | None:
    decorations, kind = [], None
    for one in node.decorator_list:
        called = one if isinstance(one, ast.Call) else None
        name = ast.unparse(called.func if called else one)
        head, dot, rest = name.partition(".")
        full = f".{imported.get(head, head)}{dot}{rest}"
        if full.endswith(".triton.jit"):
            kind = TRITON
        elif full.endswith(".helion.kernel"):
            kind = HELION
        decorations.append(Decoration(full.rpartition(".")[2], called, one.lineno))
    return None if kind is None else PythonKernel(node.name, kind, node, tuple(decorations))


def _sites(tree: ast.Module, kernels: frozenset[str]) -> Iterator[PythonLaunchSite]:
    def inside(
        node: ast.AST, host: ast.FunctionDef | None, owner: str | None
    ) -> Iterator[PythonLaunchSite]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef) and host is None:
                yield from inside(child, None, child.name)
            elif isinstance(child, ast.FunctionDef) and host is None:
                # what a kernel calls is part of it
                if child.name not in kernels:
                    yield from inside(child, child, owner)
            else:
                match child:
                    case ast.Call(func=ast.Subscript(value=ast.Name(id=name))) if name in kernels:
                        yield PythonLaunchSite(name, child, host, owner)
                yield from inside(child, host, owner)

    yield from sorted(inside(tree, None, None), key=lambda site: site.line)


def _bindings(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((one.asname or one.name).partition(".")[0] for one in node.names)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _bindings([n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)])
            for handler in getattr(node, "handlers", ()):
                yield from _bindings(handler.body)
        else:
            yield from (name for name, _ in bindings(node))
            for target in getattr(node, "targets", ()):
                yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))
