"""Draft a search space and a `launch` from a Python file with a kernel of Triton or Helion."""

from __future__ import annotations

import ast
import os
from collections.abc import Sequence
from pathlib import Path

from tuner.extensions.draft.drafting import stem_of
from tuner.extensions.draft.python.arguments import HandedArgument, handed_to
from tuner.extensions.draft.python.configs import TunedConfigs, tuned_by
from tuner.extensions.draft.python.helion import HelionConfig, tuned_by_helion
from tuner.extensions.draft.python.launch_code import LaunchCode, launch_code
from tuner.extensions.draft.python.source import (
    HELION,
    PythonKernel,
    PythonSource,
    argument_of,
    read_python,
)
from tuner.extensions.draft.space import (
    Drafted,
    min_bytes_text,
    render,
    tolerance_text,
    workloads_text,
    write,
    write_new,
)
from tuner.model.config import format_value
from tuner.space.blanks import UNWRITTEN, blanks_in

_NEITHER = (
    "holds neither a kernel of Triton (@triton.jit) or Helion (@helion.kernel) nor a KernelBench "
    "problem (`class Model` and `get_inputs()`)"
)

_UNDRAFTED = "defines `launch`, and nothing in it says arguments, sizes and choices to draft"


def draft_python(
    path: Path, folder: Path = Path(), kernels: Sequence[str] = (), *, force: bool = False
) -> Drafted:
    """Draft from a .py file: `search_spaces/NAME.yaml` below `folder`, `NAME_tune.py` beside it.

    A module that is there is kept, for its reference may be written. Raises `KernelError` for a
    file that cannot be drafted from, `SpaceError` for a space that exists unless `force`.
    """
    source = read_python(path)
    if not source.kernels and "launch" in source.globals:
        lines = (node.lineno for node in source.tree.body if getattr(node, "name", "") == "launch")
        remedy = f"write search_spaces/{path.stem}.yaml for it; docs/callables.md has one to copy"
        raise source.error(_UNDRAFTED, next(lines, None), remedy)
    if not source.kernels:
        remedy = "name a file that holds one; a CUDA kernel goes into a .cu file"
        raise source.error(_NEITHER, None, remedy)
    if len(kernels) > 1:
        raise source.error("a draft is of one kernel", None, f"choose one: --kernel {kernels[0]}")
    kernel = source.choose_kernel(next(iter(kernels), None))
    try:
        tuned, handed, code, line = _read_kernel(source, kernel)
    except RecursionError as error:
        remedy = "move what is nested so deep into a file of its own"
        raise source.error("is nested too deep to be read", kernel.line, remedy) from error
    if not tuned.tunables:
        left = "\n  ".join(tuned.left) or None
        raise source.error(f"{kernel.name} has nothing to choose", kernel.line, left)
    stem = stem_of(path, [*kernels], folder)
    module = path.with_name(f"{stem}_tune.py")
    space = folder / "search_spaces" / f"{stem}.yaml"
    write_new({space: _space(source, kernel, tuned, handed, space, module)}, force=force)
    kept = module.exists()
    if not kept:
        write(module, _module(source, kernel, handed, code, line, module))
    return Drafted(
        kernel=kernel.name,
        space=space,
        written=(space,) if kept else (space, module),
        kept=(module,) if kept else (),
        parameters=tuple(tunable.name for tunable in tuned.tunables),
        blanks=(*blanks_in(space), *blanks_in(module)),
        notes=(*tuned.notes, *handed.notes, *code.notes),
    )


def _read_kernel(
    source: PythonSource, kernel: PythonKernel
) -> tuple[TunedConfigs, HandedArgument, LaunchCode, int]:
    if kernel.kind == HELION:
        config = tuned_by_helion(source, kernel)
        handed = handed_to(source, kernel.node, ())
        return config.tuned, handed, _helion_code(kernel, config, handed), kernel.line
    host, sites = source.launched_by(kernel)
    tuned = tuned_by(source, kernel, host, sites)
    handed = handed_to(source, host, sites)
    return tuned, handed, launch_code(source, kernel, host, sites, tuned, handed), host.lineno


def _helion_code(kernel: PythonKernel, config: HelionConfig, handed: HandedArgument) -> LaunchCode:
    first = [f'{name} = tensors["{name}"]' for name in handed.tensors]
    first += [f"{s.name} = {s.text}  # {s.said.certainty}: {s.said.text}" for s in handed.scalars]
    arguments = ", ".join(kernel.parameters)
    one = "," if len(kernel.parameters) == 1 else ""
    settings = ", ".join(f"{name}={text}" for name, text in config.settings.items())
    body = [
        f"run = source.{kernel.name}",
        "if config is not None:",
        f"    settings = source.helion.Config({settings})",
        f"    run = run.bind(({arguments}{one})).compile_config(settings)",
        f"result = run({arguments})",
    ]
    names = [*handed.outputs]
    if len(names) == 1:
        body.append(f'return {{"{names[0]}": result}}')
    elif names:
        pairs = ", ".join(f'"{name}": result[{place}]' for place, name in enumerate(names))
        body.append(f"return {{{pairs}}}")
    return LaunchCode(tuple(first), "\n".join(body))


def _space(
    source: PythonSource,
    kernel: PythonKernel,
    tuned: TunedConfigs,
    handed: HandedArgument,
    space: Path,
    module: Path,
) -> str:
    inference = handed.inference
    sizes, sizes_from = workloads_text(inference)
    outputs = [a for a in inference.arguments if a.role in ("output", "inout")]
    start = Path(os.path.relpath(module.resolve(), space.resolve().parent))
    axes = ", ".join(inference.axes.names.values())
    default_from = "the source as it is"
    if kernel.decoration("autotune") is not None:
        default_from = "the first config of the file"
    elif not all(tunable.is_known for tunable in tuned.tunables):
        guesses = ", ".join(tunable.name for tunable in tuned.tunables if not tunable.is_known)
        default_from = f"the source as it is; guessed: {guesses}"
    return render(
        "python/space.yaml.j2",
        drafted_from=source.path.name,
        kernel=kernel.name,
        module=start.as_posix(),
        axes=f"[{axes}]{_key(kernel)}"
        if axes
        else "[FILL_IN]  # FILL IN: the names of the sizes, such as [T, D]",
        arguments=inference.arguments,
        sizes=sizes,
        sizes_from=sizes_from,
        min_bytes=min_bytes_text(inference.arguments),
        tunables=tuned.tunables,
        left=tuned.left,
        default=[f"{tunable.name}: {format_value(tunable.default)}" for tunable in tuned.tunables],
        default_from=default_from,
        suggestions=[
            [f"{name}: {format_value(value)}" for name, value in suggestion.items()]
            for suggestion in tuned.suggestions
        ],
        tolerances=[(a.parameter.name, tolerance_text(a)) for a in outputs],
    )


def _key(kernel: PythonKernel) -> str:
    key = argument_of(kernel.autotune, "key") if kernel.autotune else None
    if not isinstance(key, ast.List):
        return ""
    names = ", ".join(ast.unparse(name).strip("'\"") for name in key.elts)
    return f"  # triton.autotune's key: {names}, line {key.lineno}"


def _module(
    source: PythonSource,
    kernel: PythonKernel,
    handed: HandedArgument,
    code: LaunchCode,
    line: int,
    module: Path,
) -> str:
    arguments = handed.inference.arguments
    outputs = [a.parameter.name for a in arguments if a.role != "input"]
    path = source.path.resolve()
    parts, folder, above = [path.stem], path.parent, 0
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder, above = folder.parent, above + 1
    beside = {one.stem for one in path.parent.glob("*.py")} - {path.stem}
    names = {name.partition(".")[0] for node in ast.walk(source.tree) for name in _names(node)}
    return render(
        "python/module.py.j2",
        kernel=kernel.name,
        kind=kernel.kind,
        drafted_from=source.path.name,
        stem=source.path.stem,
        module=module.name,
        # imported by its name, from so many folders above the draft
        imported=".".join(parts) if above or names & beside else "",
        above=above,
        code=code,
        line=line,
        unwritten=UNWRITTEN,
        inputs=[a.parameter.name for a in arguments if a.role != "output"],
        outputs=", ".join(f"'{name}': ..." for name in outputs) or "'name': ...",
    )


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
