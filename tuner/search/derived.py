"""Break a constraint over many parameters into steps over few.

`a * b * c * d <= 64` says the same as `x = a * b`, `y = x * c`, `y * d <= 64`, and each step has
few combinations, as many products are equal.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from math import prod

import numpy as np

from tuner.expressions import Expression, free_names
from tuner.search.relations import Relation
from tuner.search.rows import MAX_VALUES, Rows, TooManyRowsError
from tuner.search.verdicts import numbers
from tuner.space import Parameter

# One step: values of its operands times each other. A table of them takes some 10 ms.
MOST_IN_STEP = 200_000


@dataclass(slots=True)
class Derivation:
    """Parameters, further ones whose values follow from theirs, and the tables that say how.

    The first `given` parameters are the space's own. The name of a derived one is no identifier,
    so that it cannot be a user's.
    """

    parameters: list[Parameter]
    given: int
    relations: list[Relation] = field(default_factory=list)

    def shortened(self, node: ast.expr) -> ast.expr:
        """Replace the calculations in an expression by derived parameters, innermost first."""
        if isinstance(node, ast.Name | ast.Constant):
            return node
        short = _Operands(self.shortened).generic_visit(deepcopy(node))
        assert isinstance(short, ast.expr)
        if not isinstance(short, ast.BinOp | ast.UnaryOp | ast.Call):
            return short
        return self._derived(short) or short

    def _derived(self, node: ast.expr) -> ast.expr | None:
        used = free_names(node)
        positions = tuple(i for i, p in enumerate(self.parameters) if p.name in used)
        chosen = [self.parameters[i] for i in positions]
        sizes = [len(parameter.values) for parameter in chosen]
        if len(positions) < 2 or prod(sizes) > MOST_IN_STEP:
            return None
        rows: Rows = np.indices(sizes, dtype=np.uint16).reshape(len(sizes), -1).T
        try:
            results = numbers(Expression(ast.unparse(node), used, node), chosen, rows)
        except TooManyRowsError:
            return None
        values, inverse = np.unique(results, return_inverse=True)
        if len(values) > MAX_VALUES:
            return None
        derived = Parameter(f"derived {len(self.parameters)}", tuple(values.tolist()))
        column = inverse.reshape(-1, 1).astype(np.uint16)
        self.relations.append(
            Relation.of((*positions, len(self.parameters)), np.hstack([rows, column]))
        )
        self.parameters.append(derived)
        return ast.Name(derived.name, ast.Load())


class _Operands(ast.NodeTransformer):
    """Replace the operands of a node."""

    def __init__(self, replace: Callable[[ast.expr], ast.expr]) -> None:
        self._replace = replace

    def visit(self, node: ast.AST) -> ast.AST:
        return self._replace(node) if isinstance(node, ast.expr) else node
