"""What of a kernel in Python decides what it launches: the code that its `launch` can reach.

A module holds a reference, inputs and peers as well, and is no other kernel for a change of theirs.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Sequence
from functools import lru_cache

# What is run of a module: the function, and what it is called with, which stands in its last lines
# (space/callables.py) and is all that differs between the configs of one that is no template.
FUNCTION, CALLED_WITH = "launch", "CONFIG = "
# By these a module's names can be reached without being written.
_BY_OTHER_WAYS = frozenset({"globals", "locals", "vars", "eval", "exec", "modules"})
# Decorators that do nothing beyond what they decorate.
_LOCAL = frozenset(
    {"cache", "lru_cache", "contextmanager", "dataclass", "jit", "autotune", "heuristics"}
)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def reached(source: str) -> str:
    """Return the statements of a module that `launch` depends on, without comments and docstrings.

    All of the text where that cannot be told: it does not parse, or looks names up by their text.
    The same text gives the same result with every version of Python.
    """
    head, mark, tail = source.rpartition(f"\n{CALLED_WITH}")
    return f"{_reached_by(head)}{mark}{tail}" if mark else _reached_by(source)


@lru_cache(maxsize=64)
def _reached_by(source: str) -> str:
    try:
        statements = ast.parse(source).body
        kept, names = _reached(statements)
        if names & _BY_OTHER_WAYS:
            return source
        lines = source.splitlines(keepends=True)
        return "\n".join(_bare(lines, one) for one in kept)
    except (SyntaxError, ValueError, RecursionError, tokenize.TokenError):
        return source


def _reached(statements: Sequence[ast.stmt]) -> tuple[list[ast.stmt], set[str]]:
    """Choose what `launch` needs, and what does more than to define names; give all their names."""
    run = [one for one in statements if not (_is_text(one) or _is_for_scripts(one))]
    everywhere = frozenset[str]().union(*map(_names, run))
    defined = [(one, _defined(one, everywhere), _names(one)) for one in run]
    kept: set[int] = set()
    wanted, before = {FUNCTION}, -1
    while before < len(kept):
        before = len(kept)
        for index, (_, own, names) in enumerate(defined):
            if index not in kept and (not own or own & wanted or "*" in own):
                kept.add(index)
                wanted |= names
    return [defined[index][0] for index in sorted(kept)], wanted


def _defined(statement: ast.stmt, everywhere: frozenset[str]) -> frozenset[str]:
    """Name what a statement defines that does no more than that; nothing for any other.

    More does one that calls something, and who imports what is named nowhere.
    """
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            defaults = (*statement.args.defaults, *filter(None, statement.args.kw_defaults))
            acts = any(map(_calls, defaults)) or _is_registered(statement.decorator_list)
            return frozenset() if acts else frozenset({statement.name})
        case ast.ClassDef():
            acts = _is_registered(statement.decorator_list)
            return frozenset() if acts else frozenset({statement.name})
        case ast.Import() | ast.ImportFrom():
            names = [one.asname or one.name.partition(".")[0] for one in statement.names]
            return frozenset(names if "*" in names or everywhere & {*names} else ())
        case ast.Assign(targets=targets, value=value) if not _calls(value):
            names = [one.id if isinstance(one, ast.Name) else "" for one in targets]
            return frozenset(names if all(names) else ())
        case ast.AnnAssign(target=ast.Name(id=name), value=value) if not _calls(value):
            return frozenset({name})
        case _:
            return frozenset()


def _calls(value: ast.expr | None) -> bool:
    return value is not None and any(isinstance(node, ast.Call) for node in ast.walk(value))


def _is_registered(decorators: Sequence[ast.expr]) -> bool:
    """Tell whether a decorator may make a function known elsewhere, under another name."""
    called = (one.func if isinstance(one, ast.Call) else one for one in decorators)
    last = (
        one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "") for one in called
    )
    return not _LOCAL.issuperset(last)


def _names(statement: ast.stmt) -> frozenset[str]:
    found = set()
    for node in ast.walk(statement):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):  # of a module that imports itself
                found.add(name)
            case ast.Global(names=names):
                found.update(names)
    return frozenset(found)


def _is_text(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
    return False


def _is_for_scripts(statement: ast.stmt) -> bool:
    """Tell `if __name__ == "__main__"`: here a module has another name."""
    match statement:
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return True
    return False


def _bare(lines: Sequence[str], statement: ast.stmt) -> str:
    """Give a statement's own text, without comments, docstrings and blank lines."""
    first = statement.lineno
    if isinstance(statement, _DEFINITIONS) and statement.decorator_list:
        first = statement.decorator_list[0].lineno
    docstrings: set[int] = set()
    texts: set[int] = set()  # lines inside of literals, in which white space is content
    for node in ast.walk(statement):
        if isinstance(node, _DEFINITIONS) and (own := _docstring(node)):
            docstrings |= own
        elif isinstance(node, ast.Constant | ast.JoinedStr):
            texts.update(range(node.lineno, _end(node)))
    rows = [
        "\n" if number in docstrings else lines[number - 1]
        for number in range(first, _end(statement) + 1)
    ]
    bare = _without_comments("".join(rows)).split("\n")
    kept = enumerate(bare, start=first)
    return "\n".join(
        row if number in texts - docstrings else row.rstrip()
        for number, row in kept
        if row.strip() or number in texts - docstrings
    )


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


def _without_comments(text: str) -> str:
    rows = text.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            rows[row - 1] = rows[row - 1][:column]
    return "\n".join(rows)
