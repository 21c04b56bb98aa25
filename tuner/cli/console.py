"""Rich's console and live tables, as all of this program prints with them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import rich.console
import rich.live
from rich.console import ConsoleOptions, RenderableType
from rich.file_proxy import FileProxy
from rich.segment import Segment

from tuner.cli.printing import clean_output, visible

# Where there is no terminal to fit into: a config then takes two or three lines.
FILE_COLUMNS = 140


class Console(rich.console.Console):
    """Print texts as they are: no markup is read in them, and escapes are Rich's own alone."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


def is_wide(console: rich.console.Console) -> bool:
    """Tell a console that is no terminal, and whose width nobody has said: lines may be long."""
    return not console.is_terminal and not os.environ.get("COLUMNS")


def fit_to_file(console: Console) -> None:
    if is_wide(console):
        console.width = FILE_COLUMNS


class Live(rich.live.Live):
    """Redraw a table a few times a second; it goes when its end comes."""

    def __init__(self, console: Console, render: Callable[[], RenderableType]) -> None:
        super().__init__(
            console=console, get_renderable=render, refresh_per_second=4, transient=True
        )

    def start(self, refresh: bool = False) -> None:
        """Show the table from now on, and what is printed meanwhile above it."""
        super().start(refresh)
        if isinstance(sys.stdout, FileProxy):
            clean_output()  # it would obey what is printed
