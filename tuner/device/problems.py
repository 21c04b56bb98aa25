"""KernelBench's problems as references, and any problem as the judge asks it."""

from __future__ import annotations

import ast
import inspect
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import count, islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.device.encoding import Array, decode, encode, multiply
from tuner.device.inputs import NORMAL, draw_values
from tuner.device.reference import Reference, blamed_on, load_reference, ran_out
from tuner.device.torch_modes import computing, tf32
from tuner.device.torch_reference import (
    Results,
    array_of,
    expression_reference,
    require_torch,
    tensor_of,
)
from tuner.device.verify.accuracy import Leeway
from tuner.device.verify.outputs import compare
from tuner.model.errors import ExpressionError, KernelError
from tuner.model.expressions import Expression
from tuner.model.kernel import FLOAT_DTYPES, Argument, KernelSpec
from tuner.process.files import read_regular

if TYPE_CHECKING:  # a verifier starts sooner without pydantic
    from tuner.device.torch_reference import Definition

Sizes = Mapping[str, int]
# The largest number of `extreme`: products of two, and sums of some of these, stay in float32's
# range. Beyond, the order of a sum decides whether it overflows.
_LARGEST_DRAWN = 2.0**60
# Of a problem's text and of what it draws: its syntax tree is a hundred times as large.
_MOST_BYTES, _MOST_INPUTS = 1_000_000, 1000
_NUMBERS = count()
_DRAWN_IN = ("get_inputs", "get_init_inputs")
_DTYPES = {"float8_e4m3fn": "float8_e4m3"}


def reference_of(spec: KernelSpec) -> Reference:
    """Load a kernel's reference, whatever kind it is; raise `KernelError` where it cannot serve."""
    if spec.torch is not None:
        return expression_reference(spec)
    if spec.reference.suffix == ".json":
        from tuner.device.torch_reference import Definition

        return _reference(spec, Definition(spec.reference))
    if is_problem(spec.reference):
        return _reference(spec, BenchProblem(spec.reference))
    return load_reference(spec.reference)


def is_problem(path: Path) -> bool:
    """Tell a KernelBench problem, `Model` and `get_inputs`, from a reference file.

    Raises `KernelError` for one that is too large to be read.
    """
    try:
        text = read_regular(path)
        if b"get_inputs" not in text:
            return False
        if len(text) > _MOST_BYTES:
            message = f"has {len(text):,} bytes, and a problem at most {_MOST_BYTES:,}"
            raise KernelError(message, path=path)
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    kinds = ast.FunctionDef | ast.ClassDef
    named = {node.name for node in tree.body if isinstance(node, kinds)}
    return {"Model", "get_inputs"} <= named and "reference" not in named


@dataclass(frozen=True, slots=True)
class ProblemConstant:
    """A whole number in a problem's text that its sizes may come from."""

    name: str
    value: int
    line: int


class BenchProblem:
    """A KernelBench problem: a module with `Model`, `get_inputs` and perhaps `get_init_inputs`.

    Its sizes are whole numbers in its text: the module's constants, by their names, and literals
    in the two functions, as `n` with the number.
    """

    # Scalars of the search space that it is called with: none, it has its own.
    passed: frozenset[str] = frozenset()

    def __init__(self, path: Path) -> None:
        self.path, self.what = path, "the problem"
        self.traced_on: tuple[str, ...] = ("meta", "cpu")
        self.torch = require_torch(path)
        self._tree = ast.parse(read_regular(path))
        self._places: dict[tuple[int, int], str] = {}
        self.knobs: dict[str, ProblemConstant] = {}
        for node in self._tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name, value = node.targets[0].id, node.value
                if isinstance(value, ast.Tuple | ast.List):
                    for place, element in enumerate(value.elts):
                        self._add(f"{name}_{place}", element)
                else:
                    self._add(name, value)
            elif isinstance(node, ast.FunctionDef) and node.name in _DRAWN_IN:
                for part in ast.walk(node):
                    if (
                        isinstance(part, ast.Constant)
                        and type(part.value) is int
                        and part.value > 1
                    ):
                        self._add(f"n{part.value}", part)
        self._posed = lru_cache(maxsize=4)(
            lambda sizes: ProblemModel(self, self._module(dict(sizes)))
        )

    def _add(self, name: str, node: ast.expr) -> None:
        number = _number(node)
        if number is not None and number > 0:
            self._places[node.lineno, node.col_offset] = name
            self.knobs[name] = ProblemConstant(name, number, node.lineno)

    def at(self, sizes: Sizes) -> ProblemModel:
        """Pose it for some sizes; those that are not named stay as they are."""
        own = {name: size for name, size in sizes.items() if name in self.knobs}
        return self._posed(tuple(sorted(own.items())))

    def _module(self, sizes: Sizes) -> dict[str, Any]:
        changed = {at: sizes[name] for at, name in self._places.items() if name in sizes}
        tree = _Resized(changed).visit(ast.parse(read_regular(self.path)))
        # torch.compile looks a module up by its name; of other sizes it is another one.
        module = ModuleType(f"problem_{self.path.stem}_{next(_NUMBERS)}")
        sys.modules[module.__name__] = module
        try:
            with blamed_on(self.path, "cannot be imported"):
                exec(compile(tree, str(self.path), "exec"), module.__dict__)  # noqa: S102
        except BaseException:
            del sys.modules[module.__name__]
            raise
        return module.__dict__


class _Resized(ast.NodeTransformer):
    def __init__(self, changed: Mapping[tuple[int, int], int]) -> None:
        self._changed = changed

    def generic_visit(self, node: ast.AST) -> ast.AST:
        place = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
        if place in self._changed and isinstance(node, ast.expr) and _number(node) is not None:
            return ast.copy_location(ast.Constant(self._changed[place]), node)
        return super().generic_visit(node)


def _number(node: ast.expr) -> int | None:
    """Compute a whole number that is written without names, such as `4 * 1024`."""
    try:
        value = Expression.parse(ast.unparse(node)).evaluate({})
    except (ExpressionError, ValueError, RecursionError):  # Python writes no number of 4,301 digits
        return None
    return value if type(value) is int else None


@dataclass(frozen=True, slots=True)
class KnownInputs:
    """A problem's inputs by name, None for its `tensors`, some of which are `plain` draws."""

    values: Mapping[str, Any]
    tensors: frozenset[str]
    plain: frozenset[str]


class ProblemModel:
    """A KernelBench problem for one workload."""

    def __init__(self, problem: BenchProblem, names: Mapping[str, Any]) -> None:
        self._problem, self._torch, self._names = problem, problem.torch, names
        self._models: dict[bool, Any] = {}
        # Only as long as it is posed: its constants may be large.
        weakref.finalize(self, sys.modules.pop, names["__name__"], None)

    def inputs(
        self, seed: int = 0, device: str = "cpu"
    ) -> tuple[dict[str, Any], Mapping[str, str]]:
        """Draw the inputs by the names that `forward` has for them, and the fills of plain ones.

        Plain are tensors that `torch.rand` or `torch.randn` gave as they are.
        """
        torch = self._torch
        noting, fill_of = _noting(torch)
        with (
            blamed_on(self._problem.path, "`get_inputs` fails"),
            torch.random.fork_rng(devices=[]),
            torch.device(device),
            noting,
        ):
            torch.manual_seed(seed)
            values = list(islice(self._names["get_inputs"](), _MOST_INPUTS + 1))
        if len(values) > _MOST_INPUTS:
            message = f"`get_inputs` gives over {_MOST_INPUTS} inputs"
            raise KernelError(message, path=self._problem.path)
        given = len(values)
        parameters = inspect.signature(self._names["Model"].forward).parameters.values()
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        named = [p.name for p in parameters if p.kind not in variadic][1 : given + 1]
        named += [f"input{place}" for place in range(len(named), given)]
        # What is made of bytes, or of NumPy's arrays, is not where it was asked for.
        placed = [one.to(device) if isinstance(one, torch.Tensor) else one for one in values]
        inputs = dict(zip(named, placed, strict=True))
        fills = {name: fill_of(value) for name, value in zip(named, values, strict=True)}
        return inputs, {name: fill for name, fill in fills.items() if fill}

    def constructor(self) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Give what the problem makes its `Model` with: positional arguments, and those by name."""
        given = self._names.get("get_init_inputs", list)()
        positional, named = ([], given) if isinstance(given, dict) else (given, {})
        if len(positional) == 2 and isinstance(positional[1], dict):
            positional, named = positional
        return positional, named

    def model(self, *, wide: bool, device: str = "cpu") -> Any:
        """Make the model, its numbers in float64 where `wide`."""
        if device != "cpu" or wide not in self._models:
            torch = self._torch
            around = computing(torch) if wide else nullcontext()
            with (
                blamed_on(self._problem.path, "`Model` cannot be made"),
                torch.random.fork_rng(devices=[]),
                torch.device(device),
                around,
            ):
                torch.manual_seed(0)
                positional, named = self.constructor()
                model = self._names["Model"](*positional, **named)
                if device != "cpu":
                    return model
                self._models[wide] = model.double() if wide else model
        return self._models[wide]

    def trace(self) -> tuple[Mapping[str, Any], Any, Any]:
        """Run it on tensors without content, or with where it needs that.

        Returns the inputs by name, the model, and what `forward` gives.
        """
        failed: KernelError | None = None
        for device in self._problem.traced_on:
            try:
                with (
                    blamed_on(self._problem.path, "`forward` fails"),
                    self._torch.no_grad(),
                    self._torch.random.fork_rng(devices=[]),
                ):
                    inputs, _ = self.inputs(device=device)
                    model = self.model(wide=False, device=device)
                    outputs = model(*inputs.values())
                # What fails there with other sizes does not take them.
                self._problem.traced_on = (device,)
                return inputs, model, outputs
            except KernelError as error:
                failed = error
        assert failed is not None
        raise failed

    def weights(self, model: Any) -> dict[str, tuple[str, Any]]:
        """Give parameters and buffers by argument name, each with its own name and tensor."""
        owned = [*model.named_parameters(), *model.named_buffers()]
        floats = ((name, t) for name, t in owned if t.is_floating_point() and t.numel())
        return {name.replace(".", "_"): (name, tensor) for name, tensor in floats}

    def averages(self, model: Any) -> set[str]:
        """Name buffers that training only counts and averages, by argument: they are no inputs."""
        names = [name for name, _ in model.named_buffers()]
        homes = [name.rpartition(".")[0] for name in names if name.endswith("num_batches_tracked")]
        training = {home for home in homes if model.get_submodule(home).training}
        return {name.replace(".", "_") for name in names if name.rpartition(".")[0] in training}

    @cached_property
    def spreads(self) -> Mapping[str, float]:
        """Give the root mean square of each of the model's weights, unless all are equal.

        With wider ones an RNN is chaos: after some steps roundings decide all that it gives.
        """
        norm, wide, found = self._torch.linalg.vector_norm, self._torch.float64, {}
        for name, (_, tensor) in self.weights(self.model(wide=False)).items():
            own = tensor.detach().reshape(-1)
            spread = float(norm(own, dtype=wide)) / own.numel() ** 0.5
            # What nobody has given numbers holds any.
            if not bool((own == own[0]).all()) and 1e-6 < spread < 1e6:
                found[name] = spread
        return found

    def run(self, tensors: Mapping[str, Any], *, wide: bool, rounded: bool = False) -> Any:
        """Compute what `forward` gives; raise `KernelError` where it draws random numbers."""
        model, torch = self.model(wide=wide), self._torch
        values = self._known.values
        if not self._known.tensors <= {*tensors}:  # no argument of the kernel's
            values, _ = self.inputs()
        weights = self.weights(model)
        state = {
            own: tensors[name].reshape(tensor.shape)
            for name, (own, tensor) in weights.items()
            if name in tensors
        }
        arguments = [tensors.get(name, value) for name, value in values.items()]
        around = computing(torch, widened=True, rounded=rounded) if wide else torch.no_grad()
        before = torch.random.get_rng_state()
        with around:
            outputs = torch.func.functional_call(model, state, tuple(arguments))
        if not bool((torch.random.get_rng_state() == before).all()):
            raise KernelError(
                "draws random numbers while it runs, which no kernel can repeat",
                path=self._problem.path,
                remedy="draw them in get_inputs, or leave dropout and noise out (`self.eval()`)",
            )
        return outputs

    @cached_property
    def _known(self) -> KnownInputs:
        """Draw the inputs once, without content where that will do: they may be large."""
        try:
            values, fills = self.inputs(device="meta")
        except KernelError:  # what it draws depends on what it drew
            values, fills = self.inputs()
        tensors = frozenset(name for name, value in values.items() if hasattr(value, "detach"))
        kept = {n: None if n in tensors else value for n, value in values.items()}
        return KnownInputs(kept, tensors, frozenset(fills))

    def drawn(self, seed: int, device: str = "cpu") -> Mapping[str, Any]:
        """Draw the inputs that are no plain draws, and buffers as the model has them."""
        others = self._known.tensors - self._known.plain
        values = self.inputs(seed, device)[0] if others else {}
        buffers = {name.replace(".", "_") for name, _ in self.model(wide=False).named_buffers()}
        weights = self.weights(self.model(wide=False))
        kept = {name: tensor for name, (_, tensor) in weights.items() if name in buffers}
        return {**{name: values[name] for name in others}, **kept}


def _noting(torch: Any) -> tuple[Any, Callable[[Any], str]]:
    """Make a mode that notes what PyTorch draws, and a function that names a tensor's fill."""
    draws: list[tuple[Any, str]] = []
    plain = {torch.rand: "uniform", torch.randn: "normal"}

    class Noting(torch.overrides.TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            value = function(*args, **(kwargs or {}))
            if function in plain:
                draws.append((value, plain[function]))
            return value

    return Noting(), lambda value: next((fill for drawn, fill in draws if drawn is value), "")


def dtype_name(tensor: Any) -> str:
    return own_dtype(str(tensor.dtype).removeprefix("torch."))


def own_dtype(name: str) -> str:
    return _DTYPES.get(name, name)


def _reference(spec: KernelSpec, problem: BenchProblem | Definition) -> Reference:
    judged = _Judged(spec, problem)
    return Reference(
        judged.compute,
        judged.inputs,
        rounded=partial(judged.compute, rounded=True),
        replaced=lambda: judged.replaced,
        spreads=judged.spreads,
    )


class _Judged:
    """A problem as the judge asks it: arrays by the names of the search space."""

    def __init__(self, spec: KernelSpec, problem: BenchProblem | Definition) -> None:
        self._spec, self._problem, self._torch = spec, problem, problem.torch
        self._results = Results(spec, problem.path, None, problem.what)
        self._arrays = {a.name: a for a in spec.arguments if a.is_read and not a.is_scalar}
        self._scalars = {a.name: a.value for a in spec.arguments if a.value is not None}
        self._leeway = Leeway(spec)
        # By kind of input and sizes: it takes three runs of the problem to tell.
        self._fair: dict[tuple[str, tuple[tuple[str, int], ...]], bool] = {}
        self.replaced = False

    def compute(
        self,
        xp: Any,
        inputs: Mapping[str, Array],
        axes: Sizes,
        *,
        rounded: bool = False,
        **operator: str,
    ) -> Mapping[str, Array]:
        """Compute the outputs in float64, where `rounded` with operands of TF32."""
        outputs = self._run(self._problem.at(axes), inputs, axes, wide=True, rounded=rounded)
        return self._results.arrays(xp, outputs, {**axes, **operator})

    def _run(
        self,
        posed: Any,
        inputs: Mapping[str, Array],
        axes: Sizes,
        *,
        wide: bool,
        rounded: bool = False,
    ) -> Any:
        torch, given = self._torch, dict[str, Any]()
        theirs = {ours: name for name, ours in _DTYPES.items()}
        for name, values in inputs.items():
            dtype = self._arrays[name].dtype
            tensor = tensor_of(torch, values, dtype)
            given[name] = tensor if wide else tensor.to(getattr(torch, theirs.get(dtype, dtype)))
        passed = self._problem.passed
        given |= {n: v.evaluate(axes) for n, v in self._scalars.items() if n in passed}
        with tf32(self._torch, allowed=False):
            return posed.run(given, wide=wide, rounded=rounded)

    def inputs(self, xp: Any, rng: Any, axes: Sizes, fill: str) -> Mapping[str, Array]:
        """Draw what the problem draws itself; of other kinds than `normal` all that is fair.

        Where PyTorch in the problem's own dtypes is not right itself, or a rounding of the inputs
        changes the outputs by more than the tolerance, the inputs of that kind are those of
        `normal`: what cannot be computed no kernel is asked for.
        """
        posed = self._problem.at(axes)
        seed = int(rng.integers(0, 2**31))
        on_gpu = xp is not np and self._torch.cuda.is_available()
        drawn = posed.drawn(seed, "cuda" if on_gpu else "cpu")
        given = {n: array_of(xp, tensor) for n, tensor in drawn.items() if n in self._arrays}
        given = {n: array.reshape(self._arrays[n].dimensions(axes)) for n, array in given.items()}
        self.replaced = False
        if fill == NORMAL:
            return given
        others = [argument for name, argument in self._arrays.items() if name not in given]
        mine = {a.name: self._draw(xp, rng, a, fill, axes) for a in others}
        asked = fill, tuple(axes.items())
        if asked not in self._fair:
            # As an array of the dtype holds them.
            kept = {a.name: encode(xp, mine[a.name], a.dtype) for a in others}
            stored = {a.name: decode(xp, kept[a.name], a.dtype) for a in others}
            self._fair[asked] = bool(mine) and self._is_fair(
                xp, rng, posed, {**given, **stored}, axes
            )
        if not self._fair[asked]:
            self.replaced = True
            mine = {a.name: self._draw(xp, rng, a, NORMAL, axes) for a in others}
        return {**given, **mine}

    def spreads(self, axes: Sizes) -> Mapping[str, float]:
        """Give how wide weights are in the problem, where the search space says no fill of them."""
        plain = {name for name, argument in self._arrays.items() if argument.fill == NORMAL}
        own = self._problem.at(axes).spreads
        return {name: spread for name, spread in own.items() if name in plain}

    def _draw(self, xp: Any, rng: Any, argument: Argument, kind: str, axes: Sizes) -> Array:
        spread = self.spreads(axes).get(argument.name, 1.0)
        values = draw_values(xp, rng, argument, kind, argument.dimensions(axes), spread=spread)
        if argument.dtype in FLOAT_DTYPES:
            values = xp.clip(values, -_LARGEST_DRAWN, _LARGEST_DRAWN)
        return values

    def _is_fair(
        self, xp: Any, rng: Any, posed: Any, inputs: Mapping[str, Array], axes: Sizes
    ) -> bool:
        """Tell whether PyTorch is right on these inputs, and rounding them changes no float."""
        floats = {n for n, argument in self._arrays.items() if argument.dtype in FLOAT_DTYPES}

        def run(given: Mapping[str, Array], *, wide: bool = True) -> dict[str, Array]:
            return self._results.arrays(xp, self._run(posed, given, axes, wide=wide), axes)

        try:
            near = run(
                {n: _nudge_values(xp, rng, a) if n in floats else a for n, a in inputs.items()}
            )
            exact, own = run(inputs), run(inputs, wide=False)
        except RuntimeError as error:  # what PyTorch itself refuses
            if ran_out(error):
                raise MemoryError(str(error)) from None
            return False
        outputs = self._results.outputs
        tolerances = self._spec.tolerances
        stated = [output for output in outputs if not tolerances[output.name].measured]
        continuous = [output for output in stated if output.dtype in FLOAT_DTYPES]
        pairs = [(output, own) for output in stated] + [(output, near) for output in continuous]
        with np.errstate(all="ignore"):
            right = all(
                compare(
                    *(xp, encode(xp, values[a.name], a.dtype), exact[a.name], a.dtype),
                    tolerances[a.name],
                ).passed
                for a, values in pairs
            )
            measured = {a.name: a.dtype for a in outputs if tolerances[a.name].measured}
            return right and all(
                self._leeway.is_fair(
                    *(xp, dtype, exact[name], own[name], near[name]),
                    others=(values for other, values in near.items() if other != name),
                )
                for name, dtype in measured.items()
            )


def _nudge_values(xp: Any, rng: Any, values: Array) -> Array:
    """Move numbers by up to half a unit of float32, up or down: what its arithmetic cannot see.

    Each by a length of its own, so that no two that cancelled still do.
    """
    moved = values.copy()
    multiply(xp, moved, lambda shape: 1.0 + (2.0 * rng.random(shape) - 1.0) * 2.0**-24)
    return moved
