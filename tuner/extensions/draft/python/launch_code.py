"""The body of a drafted `launch`: the user's own launcher, with the config handed in."""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from io import StringIO

from tuner.extensions.draft.python.arguments import HandedArgument
from tuner.extensions.draft.python.configs import TunedConfigs
from tuner.extensions.draft.python.literals import bindings
from tuner.extensions.draft.python.source import (
    PythonKernel,
    PythonLaunchSite,
    PythonSource,
    all_arguments,
    passed_to,
)

# Names that `launch` itself has.
_OWN = ("config", "tensors", "axes", "source", "chosen", "kernel")
# Decorators below which Triton's autotuner may lie, and what stands between.
_KNOWN = ("autotune", "heuristics", "jit")


@dataclass(frozen=True, slots=True)
class LaunchCode:
    """Lines of `launch`: what is bound first, then the launcher's statements.

    `kernel` is how the kernel without Triton's autotuner is reached, "" where it has none.
    `heuristics` are those around the autotuner, as expressions. `notes` tell of what does not
    follow the config.
    """

    first: tuple[str, ...]
    body: str
    kernel: str = ""
    heuristics: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def launch_code(
    source: PythonSource,
    kernel: PythonKernel,
    host: ast.FunctionDef,
    sites: Sequence[PythonLaunchSite],
    tuned: TunedConfigs,
    handed: HandedArgument,
) -> LaunchCode:
    """Rewrite the launcher so that each tuned parameter comes from the config, where one is given.

    The tree is changed: for another kernel the file is to be read anew. Raises `KernelError` where
    the source leaves open which number of the grid a parameter is.
    """
    untuned, heuristics = _without_autotuner(source, kernel)
    work = _Rewriting(source, kernel, host, tuned, handed, is_autotuned=bool(untuned))
    for site in sites:
        work.note(site)
    body: list[ast.stmt] = []
    for node in host.body:
        # none for what is not needed here
        made = work.visit(node)
        body += made if isinstance(made, list) else [made] * (made is not None)
    module = ast.fix_missing_locations(ast.Module(body or [ast.Pass()], []))
    text = _quote_plainly(ast.unparse(module))
    return LaunchCode((*work.bound(),), text, untuned, heuristics, (*work.notes,))


def _without_autotuner(source: PythonSource, kernel: PythonKernel) -> tuple[str, tuple[str, ...]]:
    names = [decoration.name for decoration in kernel.decorations]
    if "autotune" not in names:
        return "", ()
    text, around = f"source.{kernel.name}", []
    for decoration in kernel.decorations[: names.index("autotune")]:
        if decoration.name not in _KNOWN:
            raise source.error(
                f"what `@{decoration.name}` makes of {kernel.name} is not known, and Triton's "
                "autotuner lies below it",
                decoration.line,
                "put it below triton.autotune, or call the kernel without it",
            )
        around.append(f"{text}.values")
        text += ".fn"
    return f"{text}.fn", tuple(around)


@dataclass(slots=True)
class _Rewriting(ast.NodeTransformer):
    source: PythonSource
    kernel: PythonKernel
    host: ast.FunctionDef
    tuned: TunedConfigs
    handed: HandedArgument
    is_autotuned: bool
    names: dict[str, str] = field(init=False)
    # locals that a parameter comes through, and those that hold a whole config
    through: dict[str, str] = field(init=False, default_factory=dict)
    spread: set[str] = field(init=False, default_factory=set)
    constants: dict[str, str] = field(init=False, default_factory=dict)
    # nodes of a grid that stand for a parameter, and how much less they are than it
    grids: dict[int, tuple[str, int]] = field(init=False, default_factory=dict)
    notes: dict[str, None] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        local = {*_bound_names(self.host), *(a.arg for a in all_arguments(self.host))}
        shared = (n for n in ast.walk(self.host) if isinstance(n, ast.Global))
        local -= {name for node in shared for name in node.names}
        self.names = {name: f"{name}_" if name in _OWN else name for name in local}

    def note(self, site: PythonLaunchSite) -> None:
        """Look at what a launch passes before anything is rewritten."""
        known = {tunable.name for tunable in self.tuned.tunables}
        handed = passed_to(self.kernel.parameters, site.call)
        passed = {name: node for name, node in handed.items() if name in known}
        literal: dict[int, list[str]] = {}
        for name, node in passed.items():
            if isinstance(node, ast.Name):
                other = self.through.get(node.id) or self.constants.get(node.id)
                if other is not None and other != name:
                    raise self.source.error(
                        f"`{node.id}` is passed for both {other} and {name}",
                        site.line,
                        "give each a variable of its own, so that the grid follows the right one",
                    )
                if node.id in self.names:
                    self.through[node.id] = name
                else:
                    self.constants[node.id] = name
            elif isinstance(node, ast.Constant) and type(node.value) is int:
                literal.setdefault(node.value, []).append(name)
        for keyword in site.call.keywords:
            if keyword.arg is None and isinstance(keyword.value, ast.Name):
                self.spread.add(keyword.value.id)
        self._grid(site, literal, passed)

    def _grid(
        self,
        site: PythonLaunchSite,
        literal: Mapping[int, list[str]],
        passed: Mapping[str, ast.expr],
    ) -> None:
        """Find numbers of the grid that are a parameter's: passed written out, or not at all."""
        assert isinstance(site.call.func, ast.Subscript)
        grid, seen = site.call.func.slice, set[str]()
        unpassed = [
            tunable
            for tunable in self.tuned.tunables
            if tunable.name in self.kernel.constexprs and tunable.name not in passed
        ]
        parts = [(grid, True)]
        for node, is_whole in parts:
            for one in ast.walk(node):
                if isinstance(one, ast.Name) and one.id in self.names and one.id not in seen:
                    seen.add(one.id)
                    parts += [(value, one is grid) for value in self._values_of(one.id)]
                if is_whole and type(size := getattr(one, "value", None)) is int and size > 1:
                    self._follow(one, literal.get(size, []))
                size, divisor = self._divisor(one, is_whole)
                if divisor is None or id(divisor) in self.grids:
                    continue
                names = [tunable.name for tunable in unpassed if size in tunable.values]
                if isinstance(divisor, ast.Constant):
                    names += literal.get(size, [])
                self._follow(divisor, names)
                if names and isinstance(one, ast.BinOp):
                    self._follow_rounding(one.left, divisor, size, names[0])
                elif unpassed and not names and ast.unparse(divisor) not in self.through:
                    name, line = unpassed[0].name, divisor.lineno
                    self.notes[f"the grid's {size} (line {line}) does not follow {name}"] = None

    def _follow(self, node: ast.AST, names: Sequence[str]) -> None:
        if len(names) > 1:
            raise self.source.error(
                f"the grid's {ast.unparse(node)} may be {' or '.join(names)}",
                getattr(node, "lineno", None),
                f'write `lambda meta: (triton.cdiv(n, meta["{names[0]}"]),)`',
            )
        if names:
            self.grids[id(node)] = names[0], 0

    def _follow_rounding(self, added: ast.expr, divisor: ast.expr, size: int, name: str) -> None:
        """Let what is added to round up follow too: 63 of `(n + 63) // 64`."""
        for node in ast.walk(added):
            if isinstance(node, ast.Constant) and node.value in (size, size - 1):
                self.grids[id(node)] = name, int(node.value != size)
            elif isinstance(node, ast.Name) and ast.dump(node) == ast.dump(divisor):
                self.grids[id(node)] = name, 0

    def _values_of(self, name: str) -> Iterator[ast.expr]:
        """Yield what a local is set to, or returns."""
        for node in ast.walk(self.host):
            yield from (value for target, value in bindings(node) if target == name)
            if isinstance(node, ast.FunctionDef) and node.name == name:
                returns = (one for one in ast.walk(node) if isinstance(one, ast.Return))
                yield from (one.value for one in returns if one.value is not None)

    def _divisor(self, node: ast.AST, is_whole: bool) -> tuple[int, ast.expr | None]:
        """Find by which known number a division rounds up, in the grid itself also down."""
        divisor: ast.expr | None = None
        match node:
            case ast.Call(func=ast.Attribute(attr="cdiv") | ast.Name(id="cdiv"), args=[_, found]):
                divisor = found
            case ast.BinOp(left=left, op=ast.FloorDiv(), right=found):
                rounds_up = isinstance(left, ast.BinOp) and isinstance(left.op, ast.Add | ast.Sub)
                divisor = found if is_whole or rounds_up else None
        size = getattr(divisor, "value", None)
        if isinstance(divisor, ast.Name) and divisor.id not in self.constants:
            set_to = [*self._values_of(divisor.id)] or [divisor]
            size = self.source.literals.try_evaluate(set_to[0]) if len(set_to) == 1 else None
        return (size, divisor) if type(size) is int and size > 1 else (0, None)

    def bound(self) -> Iterator[str]:
        """Write what is bound before the first statement."""
        for name in self.handed.tensors:
            yield f'{self.names.get(name, name)} = tensors["{name}"]'
        for scalar in self.handed.scalars:
            text = scalar.text
            if not text.startswith(("axes[", "source.")):
                with suppress(SyntaxError):
                    text = ast.unparse(self.visit(ast.parse(text, mode="eval").body))
            own = self.names.get(scalar.name, scalar.name)
            if scalar.name in self.spread:
                own_values = (f'"{t.name}": {t.default!r}' for t in self.tuned.tunables)
                text = f"{{{', '.join(own_values)}, **chosen}}"
            elif scalar.name in self.through:
                text = f'chosen.get("{self.through[scalar.name]}", {text})'
            yield f"{own} = {text}  # {scalar.said.certainty}: {scalar.said.text}"
        for name, parameter in self.constants.items():
            if name in self.source.globals:
                yield f'{name} = chosen.get("{parameter}", source.{name})'
                self.names[name] = name

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.constants:
            return node
        made: ast.expr = node
        if node.id in self.names:
            made = ast.copy_location(ast.Name(self.names[node.id], node.ctx), node)
        elif node.id in self.source.globals:
            made = ast.Attribute(ast.Name("source", ast.Load()), node.id, node.ctx)
        return self._of_grid(node, made)

    def visit_Global(self, node: ast.Global) -> None:
        """Leave it out: the names are the module's, which is `source`."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(self.names.get(node.arg, node.arg), None)

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return self._of_grid(node, node)

    def _of_grid(self, node: ast.expr, made: ast.expr) -> ast.expr:
        """Let a number of the grid be the parameter's that it stands for."""
        name, less = self.grids.get(id(node), ("", 0))
        if less and isinstance(node, ast.Constant) and isinstance(node.value, int):
            whole = _get(name, ast.Constant(node.value + less))
            return ast.BinOp(whole, ast.Sub(), ast.Constant(less))
        return _get(name, made) if name else made

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        return self.visit_Assign(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        target = node.targets[0]
        if _is_of_context(target):
            return None
        names = [
            one.id if isinstance(one, ast.Name) else ""
            for one in (target.elts if isinstance(target, ast.Tuple) else [target])
        ]
        made = self.generic_visit(node)
        assert isinstance(made, ast.Assign)
        if len(names) == 1 and names[0] in self.through:
            made.value = _get(self.through[names[0]], made.value)
        elif len(names) == 1 and names[0] in self.spread and ast.unparse(made.value) != "None":
            made.value = ast.Dict([None, None], [made.value, ast.Name("chosen", ast.Load())])
        elif isinstance(made.value, ast.Tuple) and len(made.value.elts) == len(names):
            made.value.elts = [
                _get(self.through[name], value) if name in self.through else value
                for name, value in zip(names, made.value.elts, strict=True)
            ]
        return made

    def visit_Expr(self, node: ast.Expr) -> ast.AST | list[ast.AST] | None:
        if isinstance(node.value, ast.Constant):
            return None
        called = node.value.func if isinstance(node.value, ast.Call) else None
        if called is not None and _is_of_context(called):
            return None
        if self.tuned.hook and isinstance(node.value, ast.Call) and self._launches(node.value):
            return [self._hook(deepcopy(node.value)), self.generic_visit(node)]
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        # a return of a function inside is its own
        node.returns, node.decorator_list = None, [self.visit(one) for one in node.decorator_list]
        inner = _Inner(self)
        node.args = self.visit(node.args)
        node.body = [inner.visit(one) for one in node.body]
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        if not self.handed.outputs:
            return ast.Return(None)
        keys: list[ast.expr | None] = [ast.Constant(name) for name in self.handed.outputs]
        value = node.value
        own = value.elts if isinstance(value, ast.Tuple) else [value] if value is not None else []
        if len(own) != len(keys):
            own = [ast.parse(text, mode="eval").body for text in self.handed.outputs.values()]
        return ast.Return(ast.Dict(keys, [self.visit(one) for one in own]))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        return self._launch(node) if self._launches(node) else self.generic_visit(node)

    def _launches(self, node: ast.Call) -> bool:
        return (
            isinstance(node.func, ast.Subscript)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == self.kernel.name
        )

    def _launch(self, node: ast.Call) -> ast.Call:
        tunables = {tunable.name for tunable in self.tuned.tunables}
        parameters = self.kernel.parameters
        places = (n for n, name in enumerate(parameters[: len(node.args)]) if name in tunables)
        first = next(places, len(node.args))
        passed = passed_to(parameters, node).items()
        named = [(name, value) for name, value in passed if name not in parameters[:first]]
        spread = [keyword.value for keyword in node.keywords if keyword.arg is None]
        keys: list[ast.expr | None] = [ast.Constant(n) for n, _ in named if n in tunables]
        values = [self.visit(value) for name, value in named if name in tunables]
        values += [self.visit(one) for one in spread]
        keys += [None] * len(spread)
        whole = len(spread) == 1 and isinstance(spread[0], ast.Name) and len(values) == 1
        if not (whole and isinstance(spread[0], ast.Name) and spread[0].id in self.spread):
            keys.append(None)
            values.append(ast.Name("chosen", ast.Load()))
        handed = values[0] if len(values) == 1 else ast.Dict(keys, values)
        kept = [ast.keyword(n, self.visit(v)) for n, v in named if n not in tunables]
        assert isinstance(node.func, ast.Subscript)
        own = ast.Name("kernel", ast.Load())
        callee = own if self.is_autotuned else self.visit(node.func.value)
        func = ast.Subscript(callee, self.visit(node.func.slice), ast.Load())
        arguments = [self.visit(one) for one in node.args[:first]]
        return ast.Call(func, arguments, [*kept, ast.keyword(None, handed)])

    def _hook(self, node: ast.Call) -> ast.If:
        """Call what the configs name as `pre_hook`, as Triton's autotuner would."""
        made = self._launch(node)
        passed = passed_to(self.kernel.parameters, made)
        keys: list[ast.expr | None] = [ast.Constant(name) for name in passed]
        arguments = ast.Dict([*keys, None], [*passed.values(), ast.Name("chosen", ast.Load())])
        hook = ast.Attribute(ast.Name("source", ast.Load()), self.tuned.hook, ast.Load())
        test = ast.Compare(ast.Name("config", ast.Load()), [ast.IsNot()], [ast.Constant(None)])
        return ast.If(test, [ast.Expr(ast.Call(hook, [arguments], []))], [])


class _Inner(ast.NodeTransformer):
    """Rewrites a function inside the launcher, whose returns stay."""

    def __init__(self, outer: _Rewriting) -> None:
        self.outer = outer

    def visit_Return(self, node: ast.Return) -> ast.AST:
        if node.value is not None:
            node.value = self.outer.visit(node.value)
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.expr):
            found: ast.AST = self.outer.visit(node)
            return found
        return super().generic_visit(node)


def _quote_plainly(code: str) -> str:
    """Write plain texts in double quotes, as formatters do."""
    rows = code.splitlines(keepends=True)
    tokens = [*tokenize.generate_tokens(StringIO(code).readline)]
    for token in reversed(tokens):
        inner = token.string[1:-1]
        is_plain = token.string.startswith("'") and token.start[0] == token.end[0]
        if token.type == tokenize.STRING and is_plain and not {'"', "\\", "'"} & {*inner}:
            row, (start, end) = token.start[0] - 1, (token.start[1], token.end[1])
            rows[row] = f'{rows[row][:start]}"{inner}"{rows[row][end:]}'
    return "".join(rows)


def _get(name: str, value: ast.expr) -> ast.Call:
    get = ast.Attribute(ast.Name("chosen", ast.Load()), "get", ast.Load())
    return ast.Call(get, [ast.Constant(name), value], [])


def _is_of_context(node: ast.expr) -> bool:
    """Whether it is of the `ctx` that autograd hands over."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return isinstance(node, ast.Name) and node.id == "ctx"


def _bound_names(host: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(host):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef) and node is not host:
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
