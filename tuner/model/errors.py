"""The errors a user can meet, each with a place, what was found and what would be right.

TunerError
├── InputError            something the user wrote is wrong (exit code 2)
│   ├── ExpressionError   an expression outside the whitelist, or one that fails on its values
│   ├── SpaceError        a search-space file
│   ├── TemplateError     a template that does not parse, render or match its parameters
│   ├── KernelError       a kernel, its reference, its arguments or its workloads
│   │   ├── Untellable    its reference's outputs are such that no kernel could be told right
│   │   └── TooSlow       it, or what judges it, takes longer than is waited for
│   └── SessionError      a session that cannot be opened or resumed
├── DeviceError           the device asked for cannot be used (exit code 2)
│   ├── OutOfMemory       what a workload takes is more than it has
│   ├── Unmeasured        a program costs less than can be told
│   ├── DeviceLost        it could be used and is gone: another may take over its work
│   └── ClusterLost       all devices of a cluster are gone with its scheduler
├── AgentError            the agent cannot go on (exit code 4)
│   ├── AwaitedError      its answer is not there yet
│   ├── BudgetError       its tokens or its money are used up
│   └── ReplyError        a reply that holds no template and search space: it may try again
└── WorkerError           a child process died or gave no answer (exit code 1)
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

# What a program ends with that was stopped: the session can be resumed.
INTERRUPTED = 130


class TunerError(Exception):
    """Carry one message for the user and the exit code that goes with it."""

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        path: Path | None = None,
        line: int | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.line = line
        self.remedy = remedy

    def __str__(self) -> str:
        place = "" if self.path is None else str(self.path)
        if place and self.line is not None:
            place += f":{self.line}"
        text = f"{place}: {self.message}" if place else self.message
        return f"{text}\n  {self.remedy}" if self.remedy else text


class InputError(TunerError):
    """Report something the user wrote that cannot be right."""

    exit_code = 2


class ExpressionError(InputError):
    """Report an expression that is not allowed or cannot be evaluated."""


class SpaceError(InputError):
    """Report a mistake in a search-space file."""


class TemplateError(InputError):
    """Report a template that does not parse, render or match its parameters."""


class KernelError(InputError):
    """Report a kernel, reference, argument or workload that does not fit the others."""


class Untellable(KernelError):  # noqa: N818 - what a reference is
    """Report outputs by which no kernel could be told right or wrong, whatever it computes."""


class TooSlow(KernelError):  # noqa: N818 - as `Untellable`
    """Report a reference or a baseline that takes longer than is waited for."""


class SessionError(InputError):
    """Report a session that cannot be opened or resumed."""


class DeviceError(TunerError):
    """Report a device that was asked for and cannot be used."""

    exit_code = 2


class DeviceLost(DeviceError):  # noqa: N818 - what befell it, as `Interrupted`
    """Report a device that was in use and is gone: its host died, hangs or cannot be reached."""


class OutOfMemory(DeviceError):  # noqa: N818 - as `DeviceLost`
    """Report that what was asked for on the `workload` of this key finds no memory."""

    def __init__(self, message: str, workload: str, *, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.workload = workload

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.workload), self.__dict__


class Unmeasured(DeviceError):  # noqa: N818 - as `DeviceLost`
    """Report that a program's cost is below what can be told: nothing can be compared with it."""


class ClusterLost(DeviceError):  # noqa: N818 - as `DeviceLost`
    """Report a scheduler that is gone or cannot be reached: nothing more can be measured."""


class WorkerError(TunerError):
    """Report a child process that died or gave no answer."""


class AgentError(TunerError):
    """Report an agent that cannot go on: no key, an unknown model, a server that isn't there."""

    exit_code = 4


class AwaitedError(AgentError):
    """Report an answer that is not there yet: the run can be resumed once it is."""


class BudgetError(AgentError):
    """Report that the tokens or the money of an agent are used up."""


class ReplyError(AgentError):
    """Report a reply of an agent that cannot be used; the agent may repair it."""


class Interrupted(KeyboardInterrupt):
    """A run was interrupted; `command` holds the arguments that resume it."""

    def __init__(self, command: tuple[str, ...]) -> None:
        super().__init__(*command)
        self.command = command


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Ask whether a similar name was meant, for the beginning of a remedy; "" where none is."""
    near = get_close_matches(name, [*known], n=1)
    return f"did you mean `{near[0]}`? " if near else ""
