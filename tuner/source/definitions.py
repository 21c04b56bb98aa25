"""What a file defines: functions, classes, aliases, macros, constants."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.source.facts import Definition
from tuner.source.text import fold
from tuner.source.tree import Node, span_of, text_of

_CLASSES = ("class_specifier", "struct_specifier", "union_specifier")


def find_aliases(nodes: tuple[Node, ...], masked: str) -> dict[str, str]:
    values: dict[str, set[str]] = {}
    for node in nodes:
        if node.type == "alias_declaration":
            name, kind = node.child_by_field_name("name"), node.child_by_field_name("type")
        elif node.type == "type_definition":
            name, kind = node.child_by_field_name("declarator"), node.child_by_field_name("type")
        elif node.type == "preproc_def":
            name, kind = node.child_by_field_name("name"), node.child_by_field_name("value")
        else:
            continue
        if name is not None and kind is not None:
            values.setdefault(text_of(name, masked), set()).add(fold(text_of(kind, masked)))
    # defined twice (in the two halves of an #if, say), it has no single meaning
    return {name: found.pop() for name, found in values.items() if len(found) == 1}


def find_definitions(nodes: tuple[Node, ...], masked: str) -> Iterator[Definition]:
    for node in nodes:
        if node.type == "function_definition":
            yield from _function(node, masked)
        elif node.type in _CLASSES and node.child_by_field_name("body") is not None:
            name = node.child_by_field_name("name")
            if name is not None:
                yield Definition(
                    text_of(name, masked).split("<")[0].strip(), "class", span_of(node)
                )
        elif node.type in ("alias_declaration", "type_definition"):
            field = "name" if node.type == "alias_declaration" else "declarator"
            name = node.child_by_field_name(field)
            if name is not None:
                yield Definition(text_of(name, masked), "alias", span_of(node))
        elif node.type in ("preproc_def", "preproc_function_def"):
            name = node.child_by_field_name("name")
            if name is not None:
                yield Definition(text_of(name, masked), "macro", span_of(node))
        elif node.type == "init_declarator" and _at_file_level(node):
            name = node.child_by_field_name("declarator")
            if name is not None and node.parent is not None:
                yield Definition(text_of(name, masked), "constant", span_of(node.parent))


def _function(node: Node, masked: str) -> Iterator[Definition]:
    declarator = node.child_by_field_name("declarator")
    while declarator is not None and declarator.type != "function_declarator":
        declarator = declarator.child_by_field_name("declarator") or next(
            (c for c in declarator.named_children if c.type == "function_declarator"), None
        )
    named = declarator.child_by_field_name("declarator") if declarator is not None else None
    if named is not None:
        name = text_of(named, masked).split("<")[0].rsplit("::", 1)[-1].strip()
        yield Definition(name, "function", span_of(node))


def _at_file_level(node: Node) -> bool:
    parent = node.parent
    while parent is not None:
        if parent.type == "function_definition":
            return False
        parent = parent.parent
    return True
