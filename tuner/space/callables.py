"""Kernels in Python: functions `launch(config, tensors, axes, **operators)` and their templates.

What a device runs of such a kernel is the text of a module that says at its end what `launch` is to
be called with. A file that is no template becomes one by these lines.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence

from tuner.model.config import Parameter, SearchSpace
from tuner.model.errors import KernelError, TemplateError
from tuner.model.expressions import Expression, Value
from tuner.model.kernel import CALL, KernelSpec, LaunchSpec
from tuner.space.template import Template
from tuner.space.yaml import read_text

FUNCTION = "launch"
CALLED = (LaunchSpec(CALL, (Expression.parse("1"),), (Expression.parse("1"),)),)
_TOOK = "takes other than (config, tensors, axes, **operators)"
# config, tensors and axes.
_CALLED_BY_PLACE = 3
_LARGEST_CHARACTERS = 1 << 20
# What `launch` may be that enqueues nothing when it is called, or cannot be called.
_UNLIKE: Mapping[type[object], str] = {
    ast.AsyncFunctionDef: "an async function: called, it does nothing until somebody awaits it",
    ast.ClassDef: "a class: called, it makes an object",
    ast.Constant: "no function",
}
# What would be read as a template's.
_JINJA = re.compile(r"@\{|\}@|/\*[%#]|[%#]\*/|^\s*//[%#]", re.MULTILINE)


def load_template(spec: KernelSpec, space: SearchSpace) -> Template:
    """Read the template that a space names; of a kernel in Python that names none make one.

    Raises `TemplateError` with the file and line of a mistake.
    """
    if not spec.is_callable:
        return Template.load(spec.template, spec.include_dirs)
    text = read_text(spec.template, _LARGEST_CHARACTERS, TemplateError, "kernel")
    if spec.template == spec.source and (match := _JINJA.search(text)):
        raise TemplateError(
            f"`{match[0].strip()}` is a template's syntax",
            path=spec.template,
            line=text.count("\n", 0, match.start()) + 1,
            remedy="write it otherwise, or make the file a template and name it as `template`",
        )
    return Template.from_text(append_call(text, spec, space.parameters), spec.template)


def append_call(text: str, spec: KernelSpec, parameters: Iterable[Parameter]) -> str:
    """Add the lines that say what `launch` is called with, for a template to fill in."""
    config = []
    for parameter in parameters:
        name, kinds = f"@{{ {parameter.name} }}@", {type(value) for value in parameter.values}
        value = f"'{name}' == 'true'" if kinds == {bool} else f"'{name}'" if str in kinds else name
        config.append(f"{parameter.name!r}: {value}")
    axes = ", ".join(f"{axis!r}: @{{ {axis} }}@" for axis in spec.axes)
    operators = ", ".join(
        f"{operator.name!r}: '@{{ {operator.name} }}@'" for operator in spec.operators
    )
    return (
        f"{_end_with_newline(text)}CONFIG = {{{', '.join(config)}}}\n"
        f"AXES = {{{axes}}}\nOPERATORS = {{{operators}}}\n"
    )


def baseline_text(spec: KernelSpec, names: Mapping[str, Value]) -> str:
    """Write the module of the baseline: the kernel as it is, called without a config."""
    text = read_text(spec.source, _LARGEST_CHARACTERS, KernelError, "kernel")
    axes = {axis: names[axis] for axis in spec.axes}
    operators = {operator.name: names[operator.name] for operator in spec.operators}
    return f"{_end_with_newline(text)}CONFIG = None\nAXES = {axes!r}\nOPERATORS = {operators!r}\n"


def check_function(spec: KernelSpec) -> None:
    """Raise `KernelError` unless the source is Python that defines `launch` with its parameters.

    What those of a `functools.partial` and other values are shows once it is called.
    """
    text = read_text(spec.source, _LARGEST_CHARACTERS, KernelError, "kernel")
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        message = f"is not Python: {error.msg}"
        raise KernelError(message, path=spec.source, line=error.lineno) from error
    function = _launch(module)
    operators = ", ".join(f"{operator.name}={operator.values[0]!r}" for operator in spec.operators)
    example = f"def {FUNCTION}(config, tensors, axes{operators and ', ' + operators})"
    unlike = _UNLIKE.get(type(function))
    if function is None or unlike:
        raise KernelError(
            f"`{FUNCTION}` is {unlike}" if unlike else f"defines no function `{FUNCTION}`",
            path=spec.source,
            line=None if function is None else function.lineno,
            remedy=f"write {example}: it enqueues the work of a config on the current stream, and "
            "what the library does by itself where the config is None",
        )
    if not isinstance(function, ast.FunctionDef | ast.Lambda):
        return
    message = _not_taken(function.args, [operator.name for operator in spec.operators])
    if message:
        raise KernelError(
            message, path=spec.source, line=function.lineno, remedy=f"write {example}"
        )


def _launch(module: ast.Module) -> ast.stmt | ast.expr | None:
    """Return the last definition of `launch` in a module, or the value that it is given there."""
    found: ast.stmt | ast.expr | None = None
    for node in module.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found = node if node.name == FUNCTION else found
            case ast.Assign(targets=targets, value=value):
                named = [target.id for target in targets if isinstance(target, ast.Name)]
                found = value if FUNCTION in named else found
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found = value if name == FUNCTION else found
    return found


def _not_taken(taken: ast.arguments, operators: Sequence[str]) -> str:
    """Say why a function cannot be called with three arguments and the operators by name."""
    placed = [*taken.posonlyargs, *taken.args]
    first, others = placed[:_CALLED_BY_PLACE], placed[_CALLED_BY_PLACE:]
    if len(first) < _CALLED_BY_PLACE or any(parameter.arg in operators for parameter in first):
        return _TOOK
    named = {parameter.arg for parameter in (*others, *taken.kwonlyargs)}
    for name in operators:
        if name not in named and not taken.kwarg:
            return f"`{FUNCTION}` lacks the parameter {name!r}"
    required = others[: max(0, len(others) - len(taken.defaults))]
    pairs = zip(taken.kwonlyargs, taken.kw_defaults, strict=True)
    required += [parameter for parameter, default in pairs if default is None]
    for parameter in required:
        if parameter.arg not in operators or parameter in taken.posonlyargs:
            return f"`{FUNCTION}` asks for {parameter.arg!r}, which is no choice of the operator"
    return ""


def _end_with_newline(text: str) -> str:
    return text if text.endswith("\n") or not text else f"{text}\n"
