"""The syntax tree of CUDA source: parsed, walked, its nodes as text and offsets."""

from __future__ import annotations

import re
from collections.abc import Iterator

import tree_sitter
import tree_sitter_cuda

from tuner.source.facts import Span
from tuner.source.text import closing

Node = tree_sitter.Node
_CUDA = tree_sitter.Language(tree_sitter_cuda.language())
# what the grammar does not know, where it would tear a declaration apart
_UNPARSED = re.compile(r"\b(?:__align__|__cluster_dims__|__maxnreg__|__block_size__)\s*(?=\()")


def parse_tree(text: str) -> Node:
    """Parse C++ text so that byte offsets in the tree are character offsets in the text."""
    for match in _UNPARSED.finditer(text):
        end = closing(text, match.end()) or match.end()
        text = text[: match.start()] + " " * (end - match.start()) + text[end:]
    # one byte for every character, so that the offsets agree
    return tree_sitter.Parser(_CUDA).parse(text.encode("ascii", "replace")).root_node


def walk(root: Node) -> Iterator[Node]:
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(node.named_children))


def span_of(node: Node) -> Span:
    parent = node.parent
    if parent is not None and parent.type == "template_declaration":
        return span_of(parent)
    return node.start_byte, node.end_byte


def text_of(node: Node, masked: str) -> str:
    return masked[node.start_byte : node.end_byte]


def namespace_of(node: Node) -> tuple[str, ...]:
    names: list[str] = []
    parent = node.parent
    while parent is not None:
        if parent.type == "namespace_definition":
            name = parent.child_by_field_name("name")
            if name is not None and name.text is not None:
                names = [*name.text.decode().replace(" ", "").split("::"), *names]
        parent = parent.parent
    return tuple(names)
