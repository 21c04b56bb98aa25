"""`tune init`: drafts of the files that a kernel needs before it can be tuned."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.app.environment import program_name
from tuner.cli import options

if TYPE_CHECKING:
    from tuner.extensions.draft.space import Drafted


@click.command("init")
@click.argument("kernel_file", metavar="KERNEL", type=click.Path(path_type=Path))
@options.setting("kernel")
@options.setting("instantiate")
@options.setting("include")
@click.option("-D", "--define", metavar="NAME=VALUE", multiple=True, help="A macro of the build.")
@click.option(
    "--problem",
    metavar="FILE",
    type=options.FILE,
    help="What KERNEL.cu computes: a KernelBench problem (.py) or a FlashInfer-trace definition "
    "(.json).",
)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Where search_spaces/ and templates/ are.  [default: here]",
)
@click.option("--no-run", is_flag=True, help="Do not run the draft on the CPU: nothing is `sure`.")
@click.option("--force", is_flag=True, help="Overwrite drafts that exist; never a reference.")
@options.as_json
def command(
    kernel_file: Path,
    kernel: str | None,
    instantiate: tuple[str, ...],
    include: tuple[Path, ...],
    define: tuple[str, ...],
    problem: Path | None,
    out: Path,
    no_run: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Draft a search space, a template and a reference for KERNEL.cu or KERNEL.py.

    What the source says is filled in: the arguments, the launch, the constants that look tunable.
    What it does not say is marked FILL IN. KERNEL.cu itself is not changed.

    Where KERNEL.cu includes headers of its project or of a framework, the kernel and what it needs
    are extracted first, into kernels/KERNEL.cu.

    KERNEL.py may hold a kernel of Triton or Helion: its configs become the search space, and what
    launches it KERNEL_tune.py, beside it. The file is read and never run.

    Instead of a kernel a problem can be named, PROBLEM.py or DEFINITION.json: its kernel is the .cu
    of the same name beside it, of which a skeleton is written where there is none.
    """
    from tuner.cli.view import say_while
    from tuner.compiler.cache import Cache
    from tuner.compiler.pool import NvrtcPool
    from tuner.extensions.draft.drafting import Asked, draft_problem, draft_source
    from tuner.extensions.draft.problems.statement import states_problem
    from tuner.extensions.draft.python.drafting import draft_python
    from tuner.model.languages import refuse_opencl

    refuse_opencl(kernel_file, "`tune init`")
    names = tuple(name.strip() for name in (kernel or "").split(",") if name.strip())
    if kernel_file.suffix == ".py" and not states_problem(kernel_file):
        drafted = draft_python(kernel_file, out, names, force=force)
        click.echo(json.dumps(as_object(drafted)) if as_json else as_text(drafted))
        return
    asked = Asked(names, instantiate, include, problem, define, run=not no_run)
    with say_while(f"drafting {kernel_file}", options.say), NvrtcPool(1, cache=Cache()) as pool:
        if kernel_file.suffix in (".py", ".json"):
            drafted = draft_problem(kernel_file, out, compiler=lambda: pool, force=force)
        else:
            drafted = draft_source(kernel_file, out, asked, compiler=lambda: pool, force=force)
    click.echo(json.dumps(as_object(drafted)) if as_json else as_text(drafted))


def as_object(drafted: Drafted) -> dict[str, object]:
    """Make the object that `--json` prints; what tells of an extraction only where one was."""
    extraction = {"left_out": list(drafted.left_out), "notes": list(drafted.notes)}
    return {
        "kernel": drafted.kernel,
        "written": [*map(str, drafted.written)],
        "kept": [*map(str, drafted.kept)],
        "parameters": list(drafted.parameters),
        "blanks": [
            {"file": str(blank.file), "line": blank.line, "what": blank.what}
            for blank in drafted.blanks
        ],
        **{name: told for name, told in extraction.items() if told},
        "next": None if drafted.space is None else _check(drafted.space),
    }


def as_text(drafted: Drafted) -> str:
    """Write for a terminal what was drafted and what is left to do."""
    lines = [f"wrote {path}" for path in drafted.written]
    lines += [f"kept {path}" for path in drafted.kept]
    lines += [f"left out ({len(drafted.left_out)}):"] if drafted.left_out else []
    lines += [f"  {text}" for text in drafted.left_out]
    lines += drafted.notes
    if drafted.space is not None:
        blanks = drafted.blanks
        lines.append(f"parameters: {', '.join(drafted.parameters) or 'none found'}")
        lines.append(f"to fill in ({len(blanks)}):" if blanks else "nothing to fill in")
        lines += [f"  {blank.file}:{blank.line}: {blank.what}" for blank in blanks]
        lines.append(f"then: {_check(drafted.space)}")
    return "\n".join(lines)


def _check(space: Path) -> str:
    return f"{program_name()} check {shlex.quote(str(space))}"
