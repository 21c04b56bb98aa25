"""The arguments of a draft: dtype, shape or value, role, and where each comes from."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.draft.inference import Inference
from tuner.draft.marks import BLANK, MARK
from tuner.source import KernelParameter
from tuner.source.kernels import element_dtype

WRITTEN = ("output", "inout")


@dataclass(frozen=True, slots=True)
class DraftArgument:
    """One argument as far as it is known; `shape` is None for a scalar or an unknown one."""

    parameter: KernelParameter
    dtype: str | None
    role: str | None
    shape: tuple[str, ...] | None
    value: str | None
    origin: str

    @classmethod
    def of(cls, p: KernelParameter, types: dict[str, str], inference: Inference) -> DraftArgument:
        """Collect what is known of a kernel's parameter."""
        dtype = element_dtype(p.c_type, types) if p.pointers < 2 else None
        if p.name in inference.absent:
            told = inference.absent[p.name]
            return cls(p, "int64", None, None, told.text, told.origin)
        if p.pointers:
            role = inference.roles.get(p.name, "output")
            shape, origin = inference.shapes.get(p.name, (None, ""))
            return cls(p, dtype, role, shape, None, origin)
        if p.name in inference.axes.names:
            return cls(p, dtype, None, None, inference.axes.names[p.name], "")
        value = inference.values.get(p.name)
        if value is None:
            return cls(p, dtype, None, None, None, "")
        return cls(p, dtype, None, None, value.text, value.origin)

    @property
    def name(self) -> str:
        """The parameter's name, or a blank."""
        return self.parameter.name or BLANK

    @property
    def known(self) -> bool:
        """Whether nothing is left to fill in."""
        stated = self.shape if self.role is not None else self.value
        return self.dtype is not None and stated is not None and bool(self.parameter.name)

    def line(self) -> str:
        """Write it as one line of the file."""
        missing = [f"the dtype (`{self.parameter.declaration}`)"] if self.dtype is None else []
        missing += ["its name"] if not self.parameter.name else []
        if self.role is not None:
            missing += [f"the shape of {self.name} over the axes"] if self.shape is None else []
            end = f"shape: [{', '.join(self.shape or (BLANK,))}], role: {self.role}"
        else:
            missing += [f"the value of {self.name}"] if self.value is None else []
            end = f"value: {self.value or BLANK}"
        comments = [f"{MARK} {', '.join(missing)}"] if missing else []
        if self.origin:
            what = "shape" if self.role is not None else "value"
            comments.append(f"; the {what}: {self.origin}" if missing else f"# {self.origin}")
        comment = "".join(comments)
        begin = f"  - {{name: {self.name}, dtype: {self.dtype or BLANK}, {end}}}"
        return f"{begin}  {comment}" if comment else begin
