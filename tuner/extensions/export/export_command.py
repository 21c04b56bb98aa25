"""`tune export`: what other programs take away from a session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner import plugins
from tuner.cli import options

if TYPE_CHECKING:
    from tuner.dispatch.table import SetSelection


CONFIGS = ("sglang-configs", "vllm-configs")
PULL_REQUESTS = ("sglang-pr", "vllm-pr")
PACKAGES = ("torch", "sglang", "vllm", "kernels")
_PACKAGE = "tuned_kernels"
FORMATS = ("cpp", *PACKAGES, "flashinfer-trace", "kernelbench", *CONFIGS, *PULL_REQUESTS)
# What serves where no variant does.
OTHERWISE = {"flashinfer-trace": "the baseline", "kernelbench": "the baseline or PyTorch"}


@click.command("export")
@click.argument("session", type=click.Path(path_type=Path))
@click.argument("others", metavar="[SESSION]...", type=click.Path(path_type=Path), nargs=-1)
@click.option(
    "--to", metavar="DIR", type=options.folder, help="Write the tuned variants to this folder."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Of --to. cpp, the default: sources with a dispatch header. torch: a Python package for "
    "PyTorch, of one session or several. sglang, vllm: the same as a plugin of SGLang or vLLM. "
    "kernels: the same for `kernels` of Hugging Face. flashinfer-trace: a trace set of "
    "FlashInfer-Bench. kernelbench: a module with `ModelNew`. sglang-configs, vllm-configs: the "
    "files from which these engines take configs of their Triton kernels. sglang-pr, vllm-pr: the "
    "files of a pull request to these projects.",
)
@click.option(
    "--model",
    metavar="NAME",
    help="Of --format sglang-pr and vllm-pr: whose shapes, by a name such as llama-3-8b or a "
    "config.json.",
)
@click.option(
    "--release",
    metavar="X.Y.Z",
    help="Of --format sglang-pr and vllm-pr: the release of the engine that the files are for.",
)
@click.option(
    "--triton",
    metavar="X.Y.Z",
    help="Of --format sglang-configs and vllm-configs: the release of Triton that the engine "
    "runs; what is installed here by default.",
)
@click.option(
    "--package",
    metavar="NAME",
    help=f"Of --format torch, sglang, vllm and kernels: the name to import; {_PACKAGE} by default.",
)
@options.setting("variants_within")
@options.setting("max_variants")
@options.moved_space
@click.option(
    "--kernel-tuner",
    metavar="DIR",
    type=options.folder,
    help="Write the trials as Kernel Tuner's cache files and T4 results to this folder.",
)
@click.option(
    "--trajectories",
    metavar="FILE.jsonl",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write every round to this file, as training data for TRL.",
)
@click.option(
    "--rows",
    type=click.Choice(["sft", "grpo"]),
    help="Of --trajectories. sft, the default: prompt, completion and tools. grpo: the prompt that "
    "a template answers.",
)
def command(
    session: Path,
    others: tuple[Path, ...],
    to: Path | None,
    form: str | None,
    model: str | None,
    release: str | None,
    triton: str | None,
    package: str | None,
    variants_within: float | None,
    max_variants: int | None,
    space: Path | None,
    kernel_tuner: Path | None,
    trajectories: Path | None,
    rows: str | None,
) -> None:
    """Write a session's variants for production, its trials, or its rounds as training data."""
    # One line for each thing that can be written.
    if to is None and kernel_tuner is None and trajectories is None:
        raise click.UsageError("nothing to write; name --to, --kernel-tuner or --trajectories")
    options.require_one_choice(variants_within, max_variants)
    if to is None and (variants_within is not None or max_variants is not None):
        raise click.UsageError("--variants-within and --max-variants are for --to")
    if to is None and form is not None:
        raise click.UsageError("--format is for --to")
    form = form or "cpp"
    packaged = to is not None and form != "cpp"
    if (model is not None or release is not None) and form not in PULL_REQUESTS:
        raise click.UsageError(
            f"--model and --release are for --format {' and '.join(PULL_REQUESTS)}"
        )
    if others and not (packaged and kernel_tuner is None and trajectories is None):
        raise click.UsageError("several sessions are for --to with another --format than cpp")
    if triton is not None and form not in CONFIGS:
        raise click.UsageError(f"--triton is for --format {' and '.join(CONFIGS)}")
    if package is not None and form not in PACKAGES:
        raise click.UsageError(f"--package is for --format {', '.join(PACKAGES)}")
    if rows is not None and trajectories is None:
        raise click.UsageError("--rows is for --trajectories")
    choice = None
    if to is not None and not (variants_within is None and max_variants is None):
        from tuner.dispatch.table import SetSelection

        choice = SetSelection(variants_within, max_variants)
    if to is not None and form in CONFIGS:
        if space is not None and others:
            raise click.UsageError("--space is for one session")
        plugins.load(plugins.FORMATS, form)((session, *others), to, triton, space)
    elif to is not None and form in PULL_REQUESTS:
        _write_pull_request((session, *others), to, form, model, release, choice, space)
    elif to is not None and packaged:
        _write_package((session, *others), to, form, package or _PACKAGE, choice, space)
    elif to is not None:
        _write_dispatch(session, to, choice, space)
    if kernel_tuner is not None:
        for path in plugins.load(plugins.FORMATS, "kernel-tuner")(session, kernel_tuner, space):
            click.echo(str(path))
    if trajectories is not None:
        for text, is_note in plugins.load(plugins.FORMATS, "trajectories")(
            session, trajectories, rows or "sft"
        ):
            click.echo(text, err=is_note)


def _write_dispatch(
    session: Path, to: Path, choice: SetSelection | None, space: Path | None
) -> None:
    from tuner.extensions.export.dispatch import export_dispatch

    exported = export_dispatch(session, to, choice, space)
    table = exported.table
    count, total = len(table.kernels), len(table.entries)
    served = sum(entry.kernel is not None for entry in table.entries)
    of, rest = (f" of {total}", "; the baseline for the others") if served < total else ("", "")
    click.echo(
        f"{exported.folder} ({count} variant{'s' * (count != 1)} for {served}{of} tuned workloads, "
        f"{table.choice}{rest})"
    )
    if not count:
        click.echo("no variant is proved faster anywhere: only the baseline is exported", err=True)
    for held_out in table.held_out:
        if held_out.refuted:
            click.echo(
                f"{held_out.workload}: the rule's variant is no faster there, production's serves",
                err=True,
            )
    if exported.incomplete:
        click.echo(
            f"never compared, so served by the baseline: {', '.join(exported.incomplete)}", err=True
        )


def _write_pull_request(
    sessions: tuple[Path, ...],
    to: Path,
    form: str,
    model: str | None,
    release: str | None,
    choice: SetSelection | None,
    space: Path | None,
) -> None:
    from tuner.extensions.export.pull_request.request import export_pull_request

    if len(sessions) > 1 or choice is not None:
        raise click.UsageError(f"--format {form} is for one session, and has one kernel")
    click.echo(export_pull_request(form, sessions[0], to, model, release, space))


def _write_package(
    sessions: tuple[Path, ...],
    to: Path,
    form: str,
    package: str,
    choice: SetSelection | None,
    space: Path | None,
) -> None:
    from tuner.compiler.cache import Cache
    from tuner.compiler.pool import NvrtcPool
    from tuner.extensions.export.folder import as_argument
    from tuner.extensions.export.packages import NEXT, export_package
    from tuner.extensions.export.winners import cuda_winners_of

    if space is not None and len(sessions) > 1:
        raise click.UsageError("--space is for one session")
    found = [cuda_winners_of(session, choice, space) for session in sessions]
    with NvrtcPool(cache=Cache()) as compiler:
        export_package(found, to, compiler, package, form)
    otherwise = OTHERWISE.get(form, "the fallback")
    for winners in found:
        table = winners.dispatch.table
        served = sum(entry.kernel is not None for entry in table.entries)
        click.echo(
            f"{winners.spec.name}: {len(table.kernels)} variant{'s' * (len(table.kernels) != 1)} "
            f"for {served} of {len(table.entries)} tuned workloads; {otherwise} for others"
        )
        if not table.kernels:
            click.echo(f"{winners.spec.name}: no variant is proved faster anywhere", err=True)
    following = NEXT[form].format(to=as_argument(str(to)), path=str(to), package=package)
    click.echo(f"{to}: {following}")
