"""Tune a kernel from a program or a notebook, and look at what came of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, cast, overload

from tuner import plugins
from tuner.app.plan import RunOptions
from tuner.app.run import run
from tuner.model.errors import AgentError, InputError
from tuner.model.kernel import Workload
from tuner.model.progress import Progress
from tuner.model.settings import CallSettings, RunSettings, read, settings_in
from tuner.model.trial import Result
from tuner.session.store import DATABASE

if TYPE_CHECKING:
    import pandas as pd

    from tuner.app.notebook import Picture
    from tuner.dispatch.table import Exported
    from tuner.report.data import ReportData


P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class TuningResult:
    """What a session found: the winner of each workload, every trial, and files for others.

    `folder` is the session's. `failure` is what ended an agent's rounds too early, None otherwise.
    """

    folder: Path
    data: ReportData = field(repr=False)
    failure: AgentError | None = None

    @classmethod
    def load(cls, session: Path | str) -> Self:
        """Read a finished or interrupted session; raise `SessionError` where there is none."""
        from tuner.report.data import load

        return cls(Path(session), load(Path(session)))

    @property
    def results(self) -> tuple[Result, ...]:
        """The winners, one a workload: times in microseconds, speedup, 95 % interval, config."""
        return self.data.results

    @property
    def speedup(self) -> float | None:
        """The geometric mean of the speedups over the tuned workloads, or that of a mix's time.

        None without any, and where they ran on a CPU, whose times are not compared.
        """
        tuned = self.data.tuned
        return self.data.average(tuned) if tuned and not self.data.on_cpu else None

    def best(self, workload: Workload | Mapping[str, int] | str) -> Result:
        """Return the winner of a workload, such as `T=1024,D=4096`; raise `InputError` for none."""
        if isinstance(workload, Workload):
            wanted = workload.values
        elif isinstance(workload, str):
            try:
                pairs = (part.split("=") for part in workload.split(","))
                wanted = {axis.strip(): int(size) for axis, size in pairs}
            except ValueError:
                raise InputError(f"workload {workload!r} is not NAME=NUMBER,...") from None
        else:
            wanted = dict(workload)
        for result in self.results:
            if result.workload.values == wanted:
                return result
        known = "; ".join(result.workload.key for result in self.results) or "none"
        shown = ",".join(f"{axis}={size}" for axis, size in wanted.items())
        raise InputError(f"nothing was tuned for {shown}", remedy=f"tuned workloads: {known}")

    def source(self, workload: Workload | Mapping[str, int] | str) -> str:
        """Return the CUDA that won on a workload; raise `InputError` where there is none."""
        key = self.best(workload).workload.key
        if key not in self.data.tuned_sources:
            raise InputError(f"the kernel tuned for {key} is gone", path=self.folder / "tuned")
        return self.data.tuned_sources[key]

    def to_pandas(self) -> pd.DataFrame:
        """Lay all trials out, one a row in the order they ended; times are in microseconds."""
        from tuner.report.terminal import trials_frame

        return trials_frame(self.data)

    def winners(self) -> pd.DataFrame:
        """Lay the winners out, one workload a row; times are in microseconds."""
        import pandas as pd

        return pd.DataFrame(
            {
                **result.workload.values,
                "baseline_us": result.baseline_us,
                "tuned_us": result.tuned_us,
                **(
                    {}
                    if self.data.on_cpu
                    else {
                        "speedup": result.speedup,
                        "low": result.interval[0],
                        "high": result.interval[1],
                    }
                ),
                "config": str(result.config),
            }
            for result in self.results
        )

    def __repr__(self) -> str:
        from tuner.report.sections.summary import headline

        return f"<{self.data.kernel}: {headline(self.data)} {self.folder}>"

    def _repr_html_(self) -> str:
        from tuner.app.notebook import show

        return show(self.data)

    def plot(self, name: str = "speedup") -> Picture:
        """Draw one of the report's plots, which a notebook shows; an unknown name lists them."""
        from tuner.app.notebook import draw

        return draw(self.data, name)

    def to_json(self) -> dict[str, object]:
        """Return the object that `tune --json` prints."""
        from tuner.report.terminal import json_of

        return json_of(self.data)

    def report(self, path: Path | str | None = None) -> Path:
        """Write the report as one HTML file, `report.html` in the session by default."""
        from tuner.report.html import write_report

        place = self.folder / "report.html" if path is None else Path(path)
        write_report(self.data, place)
        return place

    def export(
        self,
        folder: Path | str,
        *,
        variants_within: float | None = None,
        max_variants: int | None = None,
    ) -> Exported:
        """Write the variants with a C++ dispatch header and a JSON table to a folder.

        The choice of the variants is the session's where neither bound is given. Raises
        `InputError` where the folder cannot be written or holds what is not ours.
        """
        from tuner.dispatch.table import SetSelection

        choice = None
        if variants_within is not None or max_variants is not None:
            choice = SetSelection(variants_within, max_variants)
        write = plugins.load(plugins.FORMATS, "dispatch")
        written: Exported = write(self.folder, Path(folder), choice, None)
        return written


@dataclass(frozen=True, kw_only=True)
class TuneKeywords(RunSettings, CallSettings):
    """What `tune` takes by name: `progress` is called with a snapshot after every trial."""

    progress: Callable[[Progress], None] | None = None


class Tune(Protocol[P]):
    """A function of a kernel and of the keywords of a model, or of source text and arrays."""

    @overload
    def __call__(
        self, source: Path | str | None = None, /, *args: P.args, **keywords: P.kwargs
    ) -> TuningResult: ...

    @overload
    def __call__(
        self, source: str, arguments: Any, parameters: Mapping[str, Any], /, **keywords: Any
    ) -> Any: ...


def _taking(keywords: Callable[P, object]) -> Callable[[Callable[..., Any]], Tune[P]]:
    """Give a function the keywords of a model, for type checkers, editors and `help`."""

    def take(function: Callable[..., Any]) -> Tune[P]:
        source, *_ = inspect.signature(function).parameters.values()
        named = inspect.signature(keywords).parameters.values()
        function.__signature__ = inspect.Signature([source, *named])  # type: ignore[attr-defined]
        return cast("Tune[P]", function)

    return take


@_taking(TuneKeywords)
def tune(source: Path | str | None = None, /, *arrays: Any, **keywords: Any) -> Any:
    """Find the best config of a kernel for every workload and prove it against the baseline.

    Where `source` has no search space yet, one is drafted: `kernel` is which of its kernels,
    `instantiate` the template arguments (`"scale<float, 4>"`), `include` folders of headers.
    `session` is the folder for all that is found; where it holds a session, that is gone on with,
    and the settings must be those it began with. `progress` is called with a snapshot after every
    trial; raising `KeyboardInterrupt` in it stops the run, which the same call resumes. The other
    keywords are those of `RunSettings` and `CallSettings` in `tuner.model.settings`.

    `tune(text, arguments, {"block": [...]}, grid=...)` tunes source text on arrays, see
    docs/other-tuners.md.

    Raises `InputError` for what is wrong with the files or the settings, `SessionError` where a
    session cannot go on, and `DeviceError` where the device cannot be used.
    """
    if arrays:
        return plugins.load(plugins.ARRAYS, "arrays")(source, *arrays, **keywords)
    from tuner.app.notebook import notebook_progress

    listener = _Listener(keywords.pop("progress", None) or notebook_progress())
    calling = {stated.name for stated in settings_in(CallSettings)} & keywords.keys()
    call = read(CallSettings, {name: keywords.pop(name) for name in calling})
    folder = None if call.session is None else Path(call.session)
    resume = folder if folder is not None and (folder / DATABASE).exists() else None
    template, headers = call.instantiate, call.include
    options = RunOptions(
        session=None if resume else folder,
        jobs=call.jobs,
        store=call.store,
        copy_session=call.copy_session,
        wait_s=call.wait_s,
        step=call.step,
        command=("tuner.tune", *([] if source is None else [str(source)])),
        kernel=call.kernel,
        instantiate=(template,) if isinstance(template, str) else tuple(template),
        include=tuple(map(Path, [headers] if isinstance(headers, str | Path) else headers)),
    )
    path = None if source is None else Path(source)
    done = run(path, keywords, options, listener, resume=resume)
    return TuningResult(done.folder, done.data, done.failure)


class _Listener:
    def __init__(self, progress: Callable[[Progress], None] | None) -> None:
        self._progress = progress

    def update(self, progress: Progress) -> None:
        if self._progress is not None:
            self._progress(progress)
