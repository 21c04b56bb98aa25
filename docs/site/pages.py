"""Gather the pages of the site in a folder: those in docs/, and what is made from the code."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

import tuner
from tuner.cli import COMMANDS, RUN, cli
from tuner.plugins import COMMANDS as OF_EXTENSIONS
from tuner.plugins import names_of

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# Pages of the site by what they are in the tree.
PAGES = {
    **{path: path.name for path in DOCS.glob("*.md")},
    DOCS / "README.md": "all-pages.md",
    DOCS / "examples/topk_softmax/README.md": "examples/topk_softmax/README.md",
    ROOT / "README.md": "index.md",
    ROOT / "CHANGELOG.md": "changelog.md",
    ROOT / "CONTRIBUTING.md": "contributing.md",
    ROOT / "SECURITY.md": "security.md",
}
SCHEMAS = {
    "space-keys.md": ("Keys of a search space", DOCS / "search-space.schema.json"),
    "evaluator-keys.md": ("Keys of an evaluator", DOCS / "evaluators.schema.json"),
}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")
_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def gather(folder: Path) -> None:
    """Write all pages, and the pictures that they show, to a folder that is not there yet."""
    folder.mkdir(parents=True)
    shutil.copytree(DOCS / "images", folder / "images")
    for source, name in PAGES.items():
        _write(folder / name, with_links(source.read_text(encoding="utf-8"), source))
    _write(folder / "options.md", options_page())
    _write(folder / "names.md", names_page())
    for name, (title, schema) in SCHEMAS.items():
        _write(folder / name, schema_page(title, json.loads(schema.read_text(encoding="utf-8"))))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def with_links(text: str, source: Path) -> str:
    """Turn a page's links into the site's; of what the site lacks only the words stay."""
    here = Path(PAGES[source]).parent

    def replace(match: re.Match[str]) -> str:
        picture, words, place, anchor = match.groups(default="")
        linked = (source.parent / place).resolve()
        if picture:
            return f"![{words}]({os.path.relpath(linked.relative_to(DOCS), here)})"
        if linked in PAGES:
            return f"[{words}]({os.path.relpath(PAGES[linked], here)}{anchor})"
        return f"{words} (`{linked.relative_to(ROOT)}` in the repository)"

    parts = _CODE.split(text)
    return "".join(part if n % 2 else _LINK.sub(replace, part) for n, part in enumerate(parts))


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def options_page() -> str:
    """List the options of every command, with the texts of `--help`."""
    lines = ["# Options", "", "What `tune COMMAND --help` says of each option.", ""]
    others = (name for name in names_of(OF_EXTENSIONS) if name not in COMMANDS)
    for name in (RUN, *COMMANDS, *others):
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        lines += [f"## tune {'KERNEL.cu' if name == RUN else name}", ""]
        lines += [inspect.cleandoc(command.help or "").split("\n\n")[0], ""]
        options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
        context = click.Context(command)
        rows = [record for option in options if (record := option.get_help_record(context))]
        if rows:
            lines += ["| option | meaning |", "|---|---|"]
            lines += [f"| `{names.replace('|', ' or ')}` | {_cell(text)} |" for names, text in rows]
            lines += [""]
    return "\n".join(lines)


def schema_page(title: str, schema: Mapping[str, Any]) -> str:
    """List the keys of a JSON Schema, those of the file first."""
    lines = [f"# {title}", "", *_keys_of("the file", schema)]
    for name, part in schema.get("$defs", {}).items():
        lines += _keys_of(_name(name), part)
    return "\n".join(lines)


def _keys_of(name: str, part: Mapping[str, Any]) -> Iterator[str]:
    if not part.get("properties"):
        return
    yield from (f"## {name}", "")
    yield from ("| key | type | meaning |", "|---|---|---|")
    for key, one in part["properties"].items():
        needed = ", needed" if key in part.get("required", ()) else ""
        yield f"| `{key}` | {_cell(_type(one))}{needed} | {_cell(one.get('description', ''))} |"
    yield ""


def _type(one: Mapping[str, Any]) -> str:
    if "$ref" in one:
        name = _name(one["$ref"].rsplit("/", 1)[1])
        return f"[{name}](#{name.lower().replace(' ', '-')})"
    if "enum" in one:
        return ", ".join(f"`{choice}`" for choice in one["enum"])
    if "anyOf" in one:
        kinds = (_type(kind) for kind in one["anyOf"] if kind.get("type") != "null")
        return " or ".join(dict.fromkeys(kinds))
    if one.get("type") == "array" and isinstance(one.get("items"), dict) and one["items"]:
        return f"list of {_type(one['items'])}"
    return {"array": "list", "object": "mapping"}.get(one.get("type", ""), one.get("type", "any"))


def _name(model: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", model.removesuffix("Model")).lower()


def names_page() -> str:
    """List what `import tuner` has, with signatures and docstrings."""
    lines = [
        "# Names in Python",
        "",
        "What `import tuner` has; [Python](python.md) shows its use.",
        "",
    ]
    for name in tuner.__all__:
        thing = getattr(tuner, name)
        if inspect.isclass(thing):
            lines += [f"## {name}", "", inspect.getdoc(thing) or "", ""]
            members = [(n, m) for n, m in vars(thing).items() if not n.startswith("_")]
            lines += [line for n, m in members if callable(m) for line in _function(n, m, "###")]
        elif callable(thing):
            lines += _function(name, thing, "##")
    return "\n".join(lines)


def _function(name: str, thing: Any, level: str) -> list[str]:
    signature = str(inspect.signature(thing)).replace("'", "")
    head = f"```python\n{name}{signature}\n```"
    return [f"{level} {name}", "", head, "", inspect.getdoc(thing) or "", ""]


if __name__ == "__main__":
    gather(Path(sys.argv[1]))
