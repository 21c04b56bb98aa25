"""What is mutated: the baseline's source, or the template rendered at one config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tuner.compiler.base import CompileRequest, CompileResult
from tuner.device.base import DeviceInfo, Program
from tuner.device.target import CompileTarget
from tuner.model.config import Config, SearchSpace
from tuner.model.errors import SpaceError
from tuner.model.kernel import KernelSpec, Launch, Workload
from tuner.mutation.mutants import Identity, Mutant, all_mutants, reached
from tuner.source import SourceFile, hide_host_code, parse_source, read_source
from tuner.space.template import Rendered, Template

# The host device would take long over more; edge cases are there to be verified.
LARGEST_BYTES = 16 << 20
LARGEST_EDGE_CASE_BYTES = 64 << 20
OF_EACH_KIND = 2


@dataclass(frozen=True)
class MutationSubject:
    """A kernel's source as its launches see it; `config` is None for the baseline."""

    spec: KernelSpec
    space: SearchSpace
    operators: Mapping[str, str]
    device: DeviceInfo
    config: Config | None = None

    @property
    def path(self) -> Path:
        """The user's file that the mutants are made of."""
        return self.spec.source if self.config is None else self.spec.template

    @property
    def name(self) -> str:
        """`baseline`, or the config."""
        return "baseline" if self.config is None else str(self.config)

    @property
    def group(self) -> str:
        """The key of the marks on its mutants."""
        return "baseline" if self.config is None else "template"

    @cached_property
    def workloads(self) -> tuple[Workload, ...]:
        """Small ones to verify on, the smallest first: tuned, held out, and every edge case.

        Raises `SpaceError` where the config is valid on none of them.
        """
        spec = self.spec
        found = [w for kind in (spec.tuned, spec.held_out) for w in self._smallest(kind)]
        found += [w for w in spec.edge_cases if self._usable(w, LARGEST_EDGE_CASE_BYTES)]
        if not found:
            raise self._no_workload()
        return tuple(sorted(dict.fromkeys(found), key=spec.footprint_bytes))

    @cached_property
    def mutants(self) -> tuple[Mutant, ...]:
        """Every mutant of the source as the first workload has it, reached or not."""
        return self._mutants(self.workloads[0])

    @cached_property
    def reached(self) -> tuple[Mutant, ...]:
        """The mutants of code that the launches reach."""
        launches = [launch for workload in self.workloads for launch in self.launches(workload)]
        kernels = dict.fromkeys(launch.kernel for launch in launches)
        return reached(self.mutants, self._parsed(self.workloads[0]), kernels, self.operators)

    @property
    def small_workloads(self) -> tuple[Workload, ...]:
        """Those of the workloads that also a slow device can run."""
        small = (w for w in self.workloads if self.spec.footprint_bytes(w) <= LARGEST_BYTES)
        return tuple(small) or self.workloads[:1]

    def text(self, workload: Workload) -> str:
        """Return the unchanged source for one workload."""
        return self._compiled(self._parsed(workload).text)

    def mutated(self, workload: Workload, mutant: Mutant) -> str | None:
        """Return a mutant's source for one workload; None where it has no such place.

        A template may render differently for every workload: there the same place is changed.
        """
        source = self._parsed(workload)
        if source.text == self._parsed(self.workloads[0]).text:
            return self._compiled(mutant.applied(source.text))
        found = self._by_place(workload).get(self._places[mutant.identity])
        return None if found is None else self._compiled(found.applied(source.text))

    def place(self, mutant: Mutant) -> int:
        """Return the line of the user's file that a mutant changes."""
        if self.config is None:
            return mutant.line
        return self._rendered(self.workloads[0]).template_line(mutant.line)

    def diff(self, mutant: Mutant) -> str:
        """Write a mutant's change to the source, as the first workload has it."""
        name = self.path.name.removesuffix(".j2")
        return mutant.diff(self._parsed(self.workloads[0]).text, name)

    def launches(self, workload: Workload) -> tuple[Launch, ...]:
        """Resolve the launches for one workload."""
        names = self._target.names(workload)
        if self.config is None:
            return self.spec.baseline_launches(names)
        return self.spec.candidate_launches({**names, **self.config})

    def request(self, text: str, workload: Workload) -> CompileRequest:
        """Make the request that compiles `text` for a workload's launches."""
        return self._target.request(text, self.launches(workload))

    def program(self, text: str, workload: Workload, result: CompileResult) -> Program:
        """Make what the device verifies of `text` once it is compiled."""
        return self._target.program(text, workload, self.launches(workload), result)

    @cached_property
    def _target(self) -> CompileTarget:
        return CompileTarget(self.spec, self.operators, self.device)

    @cached_property
    def _template(self) -> Template:
        template = Template.load(self.spec.template)
        template.check(self.space, self.spec)
        return template

    @cached_property
    def _sources(self) -> dict[Workload, SourceFile]:
        return {}

    @cached_property
    def _placed(self) -> dict[Workload, Mapping[tuple[str, int, int], Mutant]]:
        return {}

    @cached_property
    def _places(self) -> Mapping[Identity, tuple[str, int, int]]:
        return {m.identity: place for place, m in _placed(self.mutants).items()}

    def _by_place(self, workload: Workload) -> Mapping[tuple[str, int, int], Mutant]:
        if workload not in self._placed:
            self._placed[workload] = _placed(self._mutants(workload))
        return self._placed[workload]

    def _mutants(self, workload: Workload) -> tuple[Mutant, ...]:
        return all_mutants(self._parsed(workload), rendered=self.config is not None)

    def _parsed(self, workload: Workload) -> SourceFile:
        if workload not in self._sources:
            if self.config is None:
                known = next(iter(self._sources.values()), None)
                source = known or read_source(self.path)
            else:
                source = parse_source(self._rendered(workload).source, self.path)
            self._sources[workload] = source
        return self._sources[workload]

    def _rendered(self, workload: Workload) -> Rendered:
        assert self.config is not None
        names = {**workload.values, **self.operators, **self.config}
        return self._template.render(names)

    def _compiled(self, text: str) -> str:
        if self.config is not None:
            return text
        return hide_host_code(parse_source(text, self.path))

    def _no_workload(self) -> SpaceError:
        first = self.spec.tuned[0]
        config = self.config
        broken = config and self.space.violated(config, self._target.names(first))
        if broken:
            return SpaceError(
                f"{self.name} breaks `{broken.text}` on {first}, and is valid on no small workload",
                path=self.spec.path,
                remedy="choose another config",
            )
        return SpaceError(
            f"no workload is small enough for the `host` device: {LARGEST_BYTES >> 20} MiB",
            path=self.spec.path,
            remedy="add a small one to `edge_cases`, which is verified and never timed",
        )

    def _smallest(self, workloads: tuple[Workload, ...]) -> list[Workload]:
        usable = [workload for workload in workloads if self._usable(workload, LARGEST_BYTES)]
        return sorted(usable, key=self.spec.footprint_bytes)[:OF_EACH_KIND]

    def _usable(self, workload: Workload, largest_bytes: int) -> bool:
        if self.spec.footprint_bytes(workload) > largest_bytes:
            return False
        if self.config is None:
            return bool(self.launches(workload))
        broken = self.space.violated(self.config, self._target.names(workload))
        return broken is None and bool(self.launches(workload))


def _placed(mutants: tuple[Mutant, ...]) -> dict[tuple[str, int, int], Mutant]:
    """Number the mutants of each operator in each line: equal in all renderings of a template."""
    counted: dict[tuple[str, int], int] = {}
    places = {}
    for mutant in mutants:
        key = mutant.identity.operator, mutant.line
        counted[key] = counted.get(key, 0) + 1
        places[(*key, counted[key])] = mutant
    return places
