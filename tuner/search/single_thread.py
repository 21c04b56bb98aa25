"""Linear algebra on one thread: the same sums whatever the machine, and cores left to compilers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

P = ParamSpec("P")
T = TypeVar("T")


def single_threaded(function: Callable[P, T]) -> Callable[P, T]:
    """Run a function with one BLAS thread."""

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> T:
        with _controller().limit(limits=1):
            return function(*args, **kwargs)

    return limited


@cache
def _controller() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401  # brings a BLAS of its own, which must be loaded to be found

    return ThreadpoolController()
