"""What a run asks of drafts; implements `Drafter`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from tuner.app.drafters import ProblemTask
from tuner.app.environment import program_name


class SourceDrafter:
    """Drafts for kernels in CUDA C++, HIP, Triton and Helion; each question imports its own."""

    def holds_kernel(self, path: Path) -> bool:
        from tuner.extensions.draft.problems.statement import states_problem
        from tuner.extensions.draft.python.source import holds_kernel

        return not states_problem(path) and holds_kernel(path)

    def restore_template(self, space: Path) -> Path | None:
        from tuner.extensions.draft.drafting import restore_template

        return restore_template(space)

    def draft(
        self,
        kernel: Path,
        names: Sequence[str],
        instantiate: Sequence[str],
        include: Sequence[Path],
        say: Callable[[str], None],
    ) -> Path:
        from tuner.compiler.cache import Cache
        from tuner.compiler.pool import NvrtcPool
        from tuner.extensions.draft.drafting import Asked, draft_source, require_one

        if kernel.suffix == ".py":
            from tuner.extensions.draft.python.drafting import draft_python

            drafted = draft_python(kernel, Path(), tuple(names))
        else:
            asked = Asked(tuple(names), tuple(instantiate), tuple(include))
            with NvrtcPool(1, cache=Cache()) as pool:
                drafted = draft_source(kernel, asked=asked, compiler=lambda: pool)
        for path in drafted.written:
            say(f"drafted {path}")
        space = require_one(drafted)
        drafted.require_filled(f"{program_name()} check {shlex.quote(str(space))}")
        return space

    def read_problem(self, problem: Path) -> ProblemTask:
        from tuner.extensions.draft.problems.kernel import skeleton
        from tuner.extensions.draft.problems.statement import statement_of

        stated = statement_of(problem)
        return ProblemTask(skeleton(stated), (*stated.edge_cases, *stated.tuned, *stated.held_out))

    def draft_for_problem(self, kernel: Path, problem: Path) -> Path:
        from tuner.compiler.cache import Cache
        from tuner.compiler.pool import NvrtcPool
        from tuner.extensions.draft.drafting import Asked, draft_source, require_one

        asked = Asked(problem=problem)
        with NvrtcPool(1, cache=Cache()) as pool:
            drafted = draft_source(kernel, kernel.parent, asked, compiler=lambda: pool)
        space = require_one(drafted)
        drafted.require_filled("another attempt")
        return space

    def write(self, path: Path, text: str) -> None:
        from tuner.extensions.draft.space import write

        write(path, text)


DRAFTER = SourceDrafter()
