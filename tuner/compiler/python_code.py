"""What of a kernel in Python decides what it launches: the code that its `launch` can reach.

A module holds a reference, inputs and peers as well, and is no other kernel for a change of theirs.
Recordings are found by this. What is executed is told apart by its whole text.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator, Sequence
from functools import lru_cache

# What is run of a module: the function, and what it is called with, which stands in its last lines
# (space/callables.py) and is all that differs between the configs of one that is no template.
FUNCTION, CALLED_WITH = "launch", "CONFIG = "
# By these what a module holds can be reached without its name, or its comments and docstrings be
# more than that.
_REFLECTION = frozenset(
    {"globals", "locals", "vars", "eval", "exec", "modules", "import_module", "__import__"}
    | {"getmodule", "getsource", "f_globals", "__globals__", "__dict__", "__name__", "__doc__"}
    | {"__getattr__", "__class_getitem__", "__init_subclass__"}
)
# Decorators, of others' modules, that do nothing beyond what they decorate.
_HARMLESS = frozenset({"cache", "lru_cache", "contextmanager", "dataclass"})
_HARMLESS_OF_TRITON = frozenset({"jit", "autotune", "heuristics"})
_ACTING = (ast.Call, ast.NamedExpr, ast.Await)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def extract_launch_code(source: str) -> str:
    """Return the statements of a module that `launch` depends on, without comments and docstrings.

    All of the text where that cannot be told: it does not parse, or looks things up by reflection.
    Every version of Python for which the syntax means the same gives the same result.
    """
    head, mark, tail = source.rpartition(f"\n{CALLED_WITH}")
    return f"{_reached_by(head)}{mark}{tail}" if mark else _reached_by(source)


@lru_cache(maxsize=64)
def _reached_by(source: str) -> str:
    text = source.replace("\r\n", "\n").replace("\r", "\n")
    try:
        kept, names = _choose_statements(ast.parse(text).body)
        if names & _REFLECTION:
            return source
        # Not `splitlines`: it ends lines where Python does not, at a form feed for one.
        lines = text.split("\n")
        return "\n".join(_bare(lines, statement) for statement in kept)
    except (SyntaxError, ValueError, RecursionError, tokenize.TokenError):
        return source


def _choose_statements(statements: Sequence[ast.stmt]) -> tuple[list[ast.stmt], set[str]]:
    """Choose what `launch` needs, and what does more than to define names; give all their names."""
    run = [s for s in statements if not (_is_text(s) or _is_for_scripts(s))]
    own = frozenset[str]().union(*(_bound_names(statement) for statement in run))
    defined, named = ([_list_definitions(s, own) for s in run], [_names(s) for s in run])
    kept: set[int] = set()
    wanted, before = {FUNCTION}, -1
    while before < len(kept):
        before = len(kept)
        for index, names in enumerate(defined):
            if index not in kept and (not names or names & wanted):
                kept.add(index)
                wanted |= named[index]
    return [run[index] for index in sorted(kept)], wanted


def _list_definitions(statement: ast.stmt, own: frozenset[str]) -> frozenset[str]:
    """Name what a statement defines that does no more than that; nothing for any other.

    More does what calls something when the module is loaded, and any import. `own` are the names
    that the module defines: a decorator of its own may do anything.
    """
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            acts = any(_holds(expression, _ACTING) for expression in _run_at_once(statement))
            acts = acts or not _is_harmless(statement, own)
            acts = acts or statement.name.startswith("__")  # called without being named
        case ast.ClassDef(bases=bases, keywords=keywords, body=body):
            acts = bool(bases or keywords) or not _is_harmless(statement, own)
            # Tell what does something from a text and `pass`.
            acts = acts or any(
                not _list_definitions(inner, own)
                for inner in body
                if (not (_is_text(inner) or isinstance(inner, ast.Pass)))
            )
        case ast.Assign(value=value) | ast.AnnAssign(value=value):
            acts = value is not None and _holds(value, (*_ACTING, ast.Subscript))
        case _:
            acts = True
    return frozenset() if acts else _bound_names(statement)


def _bound_names(statement: ast.stmt) -> frozenset[str]:
    """Give the names that a plain definition binds; nothing for what binds otherwise."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return frozenset({statement.name})
        case ast.Assign(targets=targets):
            names = [target.id if isinstance(target, ast.Name) else "" for target in targets]
            return frozenset(names if all(names) else ())
        case ast.AnnAssign(target=ast.Name(id=name)):
            return frozenset({name})
    return frozenset()


def _run_at_once(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr]:
    """Yield what of a function is computed where it is defined, but for its decorators."""
    arguments = function.args
    yield from arguments.defaults
    yield from filter(None, arguments.kw_defaults)
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    for argument in (*every, arguments.vararg, arguments.kwarg):
        if argument is not None and argument.annotation is not None:
            yield argument.annotation
    if function.returns is not None:
        yield function.returns


def _holds(value: ast.expr, kinds: tuple[type[ast.expr], ...]) -> bool:
    return any(isinstance(node, kinds) for node in ast.walk(value))


def _is_harmless(
    definition: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, own: frozenset[str]
) -> bool:
    """Tell whether no decorator can make a definition known elsewhere, under another name."""
    for decorator in definition.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        match called:
            case ast.Attribute(value=ast.Name(id="triton"), attr=name):
                harmless = name in _HARMLESS_OF_TRITON
            case ast.Attribute(value=ast.Name(id="functools" | "contextlib" | "dataclasses")):
                harmless = called.attr in _HARMLESS
            case ast.Name(id=name):
                harmless = name in _HARMLESS and name not in own
            case _:
                harmless = False
        if not harmless:
            return False
    return True


def _names(statement: ast.stmt) -> frozenset[str]:
    named = set()
    for node in ast.walk(statement):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):  # of a module that imports itself
                named.add(name)
            case ast.Global(names=names):
                named.update(names)
            case ast.alias(name=name):
                named.update(name.split("."))
    return frozenset(named)


def _is_text(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
    return False


def _is_for_scripts(statement: ast.stmt) -> bool:
    """Tell `if __name__ == "__main__":` alone: here a module has another name."""
    match statement:
        case ast.If(
            test=ast.Compare(
                left=ast.Name(id="__name__"),
                ops=[ast.Eq()],
                comparators=[ast.Constant(value="__main__")],
            ),
            orelse=[],
        ):
            return True
    return False


def _bare(lines: Sequence[str], statement: ast.stmt) -> str:
    """Give a statement's own text, without comments, docstrings and blank lines."""
    first = statement.lineno
    if isinstance(statement, _DEFINITIONS) and statement.decorator_list:
        first = statement.decorator_list[0].lineno
    docstrings: set[int] = set()
    texts: set[int] = set()  # lines that a literal goes on after: there white space is content
    for node in ast.walk(statement):
        if isinstance(node, _DEFINITIONS) and (own := _docstring(node)):
            docstrings |= own
        elif isinstance(node, ast.Constant | ast.JoinedStr):
            texts.update(range(node.lineno, _end(node)))
    numbers = range(first, _end(statement) + 1)
    own_lines = ["" if number in docstrings else lines[number - 1] for number in numbers]
    bare, emptied = _without_comments(own_lines)
    kept = []
    for number, row in zip(numbers, bare, strict=True):
        content = number in texts - docstrings and number - first not in emptied
        if content or row.strip():
            kept.append(row if content else row.rstrip())
    return "\n".join(kept)


def _docstring(definition: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> set[int]:
    """Give the lines of a docstring, where nothing else stands in them."""
    text, *others = definition.body
    if not _is_text(text) or not others:
        return set()
    alone = text.lineno > definition.lineno and _end(text) < others[0].lineno
    return set(range(text.lineno, _end(text) + 1)) if alone else set()


def _end(node: ast.stmt | ast.expr) -> int:
    assert node.end_lineno is not None
    return node.end_lineno


def _without_comments(lines: Sequence[str]) -> tuple[list[str], set[int]]:
    """Cut comments off; tell which lines were nothing else, by their places."""
    rows, emptied = [*lines], set()
    # Ends of lines stay where they are: what `split` gave is put together again.
    for token in tokenize.generate_tokens(io.StringIO("\n".join(lines), newline="\n").readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            rows[row - 1] = rows[row - 1][:column]
            if not rows[row - 1].strip():
                emptied.add(row - 1)
    return rows, emptied
