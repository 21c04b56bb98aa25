"""What the host code says about the launch of a kernel, its variables followed to their values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from tuner.source import KernelFunction, LaunchSite, SourceFile
from tuner.source.dtypes import element_dtype
from tuner.source.facts import IDENTIFIER, bare_name
from tuner.source.text import number

_MAX_HOPS = 8


@dataclass(frozen=True, slots=True)
class HostLaunch:
    """One kernel with the first launch of it, if the file has one."""

    source: SourceFile
    kernel: KernelFunction
    site: LaunchSite | None

    @classmethod
    def of(cls, source: SourceFile, kernel: KernelFunction) -> HostLaunch:
        """Find the first launch of `kernel`, one whose template arguments are known if there is."""
        found = [
            cls(source, kernel, site)
            for site in source.launches
            if bare_name(site.kernel) == kernel.name
        ]
        complete = [launch for launch in found if launch.instance is not None]
        return next(iter(complete or found), cls(source, kernel, None))

    @property
    def line(self) -> int:
        """The launch's line, or the kernel's where there is none."""
        return self.kernel.line if self.site is None else self.site.line

    @property
    def names(self) -> frozenset[str]:
        """All names that the launch configuration depends on."""
        if self.site is None:
            return frozenset()
        site = self.site
        return self.closure((*site.grid, *site.block, site.shared, *site.template_arguments))

    def closure(self, texts: Iterable[str]) -> frozenset[str]:
        """List the names in some texts, and those that the host variables among them depend on."""
        definitions = self.site.definitions if self.site is not None else {}
        found: set[str] = set()
        pending = list(chain.from_iterable(IDENTIFIER.findall(text) for text in texts))
        while pending:
            name = pending.pop()
            if name not in found:
                found.add(name)
                pending += IDENTIFIER.findall(definitions.get(name, ""))
        return frozenset(found)

    @property
    def block(self) -> tuple[int, ...]:
        """The block's extents where they are numbers, else nothing."""
        extents = self.site.block if self.site is not None else ()
        numbers = [number(self.value(extent)) for extent in extents]
        plain = tuple(n for n in numbers if isinstance(n, int) and n > 0)
        return plain if len(plain) == len(numbers) else ()

    @property
    def block_names(self) -> tuple[str, ...]:
        """The block's extents as the names or expressions that host variables stand for."""
        return tuple(self.followed(extent) for extent in (self.site.block if self.site else ()))

    @property
    def instance(self) -> tuple[str, ...] | None:
        """A text for every template parameter; None where the source does not say them all."""
        parameters = self.kernel.template
        stated = self.site.template_arguments[: len(parameters)] if self.site is not None else ()
        own = [self.followed(text) for text in stated]
        texts = [*own, *(parameter.default for parameter in parameters[len(own) :])]
        known = tuple(text for text in texts if text is not None and self._is_known(text))
        packed = any("..." in parameter.kind for parameter in parameters)
        return known if len(known) == len(parameters) and not packed else None

    def stated(self, index: int) -> Iterator[str]:
        """Yield the values that the file's launches give to one template parameter."""
        for site in self.source.launches:
            if bare_name(site.kernel) == self.kernel.name and len(site.template_arguments) > index:
                launch = HostLaunch(self.source, self.kernel, site)
                yield launch.value(site.template_arguments[index])

    def followed(self, text: str) -> str:
        """Follow host variables to what they stand for."""
        definitions = self.site.definitions if self.site is not None else {}
        for _ in range(_MAX_HOPS):
            if text not in definitions:
                break
            text = definitions[text]
        return text

    def value(self, text: str) -> str:
        """Follow host variables, then the file's constants."""
        text = self.followed(text)
        values = {c.value for c in self.source.constants if c.name == text}
        return values.pop() if len(values) == 1 else text

    def types(self) -> dict[str, str]:
        """Map template parameters to the types they stand for, on top of the file's aliases."""
        aliases = dict(self.source.aliases)
        instance = self.instance
        for index, parameter in enumerate(self.kernel.template):
            aliases.pop(parameter.name, None)
            if parameter.is_type and instance is not None:
                aliases[parameter.name] = instance[index]
        return aliases

    def _is_known(self, text: str) -> bool:
        if self.source.host_from is not None:
            # what was extracted is an instantiation that is known as a whole
            return True
        named = {
            d.name for d in self.source.definitions if d.kind in ("class", "alias", "function")
        }
        return (
            number(self.value(text)) is not None
            or bare_name(text) in named
            or element_dtype(text, self.source.aliases) is not None
        )
