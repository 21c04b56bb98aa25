"""The syntax tree of a template: what may stand in it, and marks that keep its lines."""

from __future__ import annotations

from math import isfinite

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from tuner.template_sandbox import (
    COUNT,
    FILTERS,
    JOIN,
    LOOP,
    MARK,
    MARK_CHARACTERS,
    MAX_BITS,
    UNMARK,
    WEIGH,
    functions,
    sandbox,
)

_STATEMENTS = (nodes.Assign, nodes.For, nodes.If, nodes.Macro, nodes.Output, nodes.Template)
_EXPRESSIONS = (
    *(nodes.BinExpr, nodes.UnaryExpr, nodes.Compare, nodes.Operand, nodes.Concat, nodes.CondExpr),
    *(nodes.Const, nodes.TemplateData, nodes.Name, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair),
    *(nodes.Call, nodes.Keyword, nodes.Filter, nodes.Test, nodes.Getattr, nodes.Getitem),
)


def refusal(node: nodes.Node) -> tuple[str, str] | None:
    """Say why a node of the syntax tree is not allowed and what is; None where it may stand."""
    environment = sandbox()
    match node:
        case nodes.For(recursive=True):
            return "a recursive loop is not allowed", "a macro may call itself"
        case nodes.CondExpr(expr2=None):
            return "an `if` without `else` in an expression", "write `a if c else b`"
        case nodes.Call(dyn_args=extra, dyn_kwargs=more) if extra or more:
            return "`*` and `**` in a call are not allowed", "write the arguments out"
        case nodes.Call(node=function) if not isinstance(function, nodes.Name):
            return "only a macro or a function can be called", _functions()
        case nodes.Getattr(node=nodes.Name(name="loop"), attr=attribute) if attribute in LOOP:
            return None
        case nodes.Getattr(attr=attribute):
            known = ", ".join(f"loop.{name}" for name in sorted(LOOP))
            return f"the attribute `{attribute}` is not allowed", f"only loops have some: {known}"
        case nodes.Filter(name=name) if name not in FILTERS:
            return f"no filter is named `{name}`", f"filters: {', '.join(sorted(FILTERS))}"
        case nodes.Test(name=name) if name not in environment.tests:
            return f"no test is named `{name}`", f"tests: {', '.join(sorted(environment.tests))}"
        case nodes.Const(value=str() as text) if set(text) & set(MARK_CHARACTERS):
            return "a text with a control character", "write visible characters"
        case nodes.Const(value=float() as number) if not isfinite(number):
            return "a number that is not finite", "no size needs more than 1e308"
        case nodes.Const(value=int() as number) if number.bit_length() > MAX_BITS:
            return "the number is too large", f"no size needs over {MAX_BITS} bits"
    if isinstance(node, _STATEMENTS + _EXPRESSIONS):
        return None
    name = type(node).__name__.lower()
    return f"`{name}` is not allowed in a template", "statements: if, for, set, macro"


def _functions() -> str:
    return f"functions: {', '.join(sorted(functions()))}; and the template's own macros"


class Marking(NodeTransformer):
    """Rewrite a syntax tree so that every line of its output starts with the line it came from.

    Text that a macro returns keeps its marks where it is written out at once; where a template
    looks at it or keeps it, the marks are taken out, and its lines are those of the expression.
    """

    def visit_Output(self, node: nodes.Output) -> nodes.Output:  # noqa: N802
        """Mark the lines of text, and what is written between them."""
        marked: list[nodes.Expr] = []
        for child in node.nodes:
            line = child.lineno
            if isinstance(child, nodes.TemplateData):
                marked.append(nodes.Const(_marked(child.data, line), lineno=line))
                continue
            marked.append(nodes.Const(MARK.format(line), lineno=line))
            if isinstance(child, nodes.Call):
                self.generic_visit(child)
                marked.append(child)
            else:
                marked.append(self.visit(child))
        node.nodes = marked
        return node

    def visit_Call(self, node: nodes.Call) -> nodes.Filter:  # noqa: N802
        """Take the marks out of what a macro returns."""
        self.generic_visit(node)
        return _filter(node, UNMARK)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        """Join texts within the budget."""
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), JOIN)

    def visit_List(self, node: nodes.List) -> nodes.Filter:  # noqa: N802
        """Bound what a list holds, itself many times over included."""
        self.generic_visit(node)
        return _filter(node, WEIGH)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Filter:  # noqa: N802
        """Bound what a mapping holds, and the keys that are hashed for it."""
        for pair in node.items:
            pair.key = _filter(self.visit(pair.key), WEIGH)
            pair.value = self.visit(pair.value)
        return _filter(node, WEIGH)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802
        """Bound what a tuple holds; one that is assigned to holds nothing."""
        self.generic_visit(node)
        return node if node.ctx == "store" else _filter(node, WEIGH)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        """Compare within the budget."""
        self.generic_visit(node)
        node.expr = _filter(node.expr, WEIGH)
        for operand in node.ops:
            operand.expr = _filter(operand.expr, WEIGH)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Test:  # noqa: N802
        """Test within the budget: `is in` compares."""
        self.generic_visit(node)
        node.node = _filter(node.node, WEIGH)
        node.args = [_filter(argument, WEIGH) for argument in node.args]
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Getitem:  # noqa: N802
        """Look a key up within the budget: a long one is hashed and compared."""
        self.generic_visit(node)
        node.arg = _filter(node.arg, WEIGH)
        return node

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        """Iterate within the budget."""
        self.generic_visit(node)
        node.iter = _filter(node.iter, COUNT)
        return node


def _filter(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _marked(text: str, line: int) -> str:
    pieces = text.split("\n")
    return "\n".join(MARK.format(line + i) + piece for i, piece in enumerate(pieces))
