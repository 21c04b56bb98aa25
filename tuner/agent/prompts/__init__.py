"""What a model is told; the texts are the Markdown files beside this one."""

from __future__ import annotations

import re
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined


def prompt(name: str, **values: object) -> str:
    """Write the prompt `name`, with values put in as they are."""
    return _environment().get_template(f"{name}.md.j2").render(**values).strip()


def fenced(text: str, word: str) -> str:
    """Put a text in a fenced block that nothing inside of it can close."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    ticks = "`" * max(longest + 1, 3)
    return f"{ticks}{word}\n{text.rstrip()}\n{ticks}"


@cache
def _environment() -> Environment:
    # Nothing here is HTML: escaping would change the code that is put in.
    environment = Environment(
        loader=PackageLoader("tuner.agent", "prompts"),
        autoescape=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["fenced"] = fenced
    return environment
