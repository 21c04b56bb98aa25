"""`tune demo`: from nothing to a report, on measurements that come with the program."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from tuner.app.environment import program_name
from tuner.cli import options, run_command
from tuner.cli.exits import require_writable, writing
from tuner.model.errors import InputError
from tuner.process.files import atomic_write

# Links into kernels/, search_spaces/ and templates/; in a wheel they are files.
FILES = Path(__file__).with_name("demo")
KERNELS = ("rmsnorm", "per_token_quant_fp8")


@click.command("demo")
@click.argument("kernel", type=click.Choice(KERNELS), default=KERNELS[0])
@click.option(
    "--to",
    "folder",
    metavar="DIR",
    type=options.folder,
    default="tune-demo",
    show_default=True,
    help="Folder for the kernel's files and its session.",
)
def command(kernel: str, folder: Path) -> None:
    """Tune KERNEL, rmsnorm by default, on measurements of an H200 that come with the program.

    Neither a GPU nor a compiler is needed. The search, its verdict and the report are those of any
    run; its files are copied to a folder, as yours would lie.
    """
    session = folder / "sessions" / kernel
    if session.exists():
        raise InputError(
            "the demo was run here before",
            path=session,
            remedy=f"look at {session / 'report.html'}, go on with `tune --resume {session}`, or "
            "choose another folder with --to",
        )
    require_writable(folder, "--to")
    with writing(folder, "files of the demo", "--to"):
        for file in FILES.rglob("*"):
            target = folder / file.relative_to(FILES)
            # pip compiles whatever Python it installs; what is there already may be changed.
            if file.is_file() and file.suffix != ".pyc" and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                atomic_write(target, file.read_bytes())
    words = [
        *(str(folder / f"kernels/sglang/{kernel}.cu"), "--device", "recorded"),
        *("--space", str(folder / f"search_spaces/sglang/{kernel}.yaml")),
        *("--session", str(session)),
    ]
    click.echo(shlex.join([program_name(), *words]))
    export = ["export", str(session), "--to", str(folder / "variants")]
    following = (
        f"next           {shlex.join([program_name(), *export])}",
        f"               {program_name()} your_kernel.cu",
    )
    # Not `main`, which would turn an interruption into one that says nothing of how to resume.
    with run_command.command.make_context(program_name(), words, obj=following) as context:
        run_command.command.invoke(context)
