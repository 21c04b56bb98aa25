"""FlashInfer-trace's definitions as references: a JSON file that holds one in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from tuner.device.reference import blamed_on
from tuner.device.torch_reference import computing, require_torch
from tuner.model.errors import KernelError
from tuner.process.files import read_regular

# They stand in search spaces and in CUDA.
Name = Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$", max_length=100)]
Size = Annotated[int, Field(gt=0, lt=1 << 63)]
_MOST = 100


class AxisModel(BaseModel):
    """An axis of a definition: of one value, or open."""

    value: Size | None = None


class TensorModel(BaseModel):
    """An array of a definition, or a scalar where its shape is null."""

    shape: Annotated[list[str | int], Field(max_length=_MOST)] | None
    dtype: Annotated[str, Field(max_length=_MOST)]


class DefinitionModel(BaseModel):
    """As much of FlashInfer-trace's schema as a kernel is judged by; the rest is not read."""

    name: Annotated[str, Field(max_length=_MOST)]
    axes: Annotated[dict[Name, AxisModel], Field(max_length=_MOST)]
    inputs: Annotated[dict[Name, TensorModel], Field(max_length=_MOST)]
    outputs: Annotated[dict[Name, TensorModel], Field(min_length=1, max_length=_MOST)]
    # A syntax tree is a hundred times as large.
    reference: Annotated[str, Field(max_length=1_000_000)]


class Definition:
    """A FlashInfer-trace definition: axes, inputs, outputs and the text of a reference, `run`."""

    def __init__(self, path: Path) -> None:
        self.path, self.what = path, "the definition's reference"
        self.torch = require_torch(path)
        try:
            self.data = DefinitionModel.model_validate_json(read_regular(path))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise KernelError(
                f"is no definition of a FlashInfer trace: {where}: {first['msg']}",
                path=path,
                remedy="it is a JSON object with name, axes, inputs, outputs and reference",
            ) from error
        self._names: dict[str, Any] = {"__name__": f"definition_{path.stem}"}
        with blamed_on(path, "its reference cannot be imported"):
            exec(compile(self.data.reference, str(path), "exec"), self._names)  # noqa: S102
        if not callable(self._names.get("run")):
            raise KernelError("its reference defines no `run`", path=path)
        self.passed = frozenset(self.data.inputs)

    def at(self, sizes: Mapping[str, int]) -> Definition:
        """Pose it for some sizes: the reference takes them from its inputs."""
        return self

    def run(self, tensors: Mapping[str, Any], *, wide: bool) -> Any:
        """Call the reference with the inputs of its signature."""
        around = computing(self.torch, widened=True) if wide else self.torch.no_grad()
        with around:
            outputs = self._names["run"](**tensors)
        if isinstance(outputs, Mapping):
            return tuple(outputs[name] for name in self.data.outputs)
        return outputs

    def drawn(self, seed: int, device: str = "cpu") -> Mapping[str, Any]:
        """Draw nothing: a definition says no more than dtypes."""
        return {}
