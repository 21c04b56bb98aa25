"""The settings of a run, each written once: every surface that offers one makes it from here.

The command line, Python's keywords, the file of a campaign and the tools of `tune mcp` take name,
type, range, default and text from the fields of these classes.
"""

# `setting` gives `dataclass` a field, which no instance shares.
# ruff: noqa: RUF009

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from tuner.model.errors import InputError, suggest_name

if TYPE_CHECKING:
    from pydantic import BaseModel

    Model = TypeVar("Model", bound=BaseModel)


from tuner.model.expressions import Expression
from tuner.model.kernel import Workload

T = TypeVar("T")
# Settings as somebody gives them, by the names of `RunSettings`; who does not says nothing of them.
GivenSettings = Mapping[str, Any]

AUTO, LITERAL, OPENAI, FILES = "auto", "literal", "openai", "files"
# A device that begins so is a program of the user's, run as it stands behind it.
COMMAND = "command:"
# The client of `tune mcp`: no option names it.
MCP = "mcp"
MCTS, GREEDY, LLM = "mcts", "greedy", "llm"
# With fewer rounds a tree search loses to building on the best: it has no time to be wrong and
# come back (tests/unit/extensions/agents/test_tree.py simulates both).
MCTS_ROUNDS = 16
# Without a number, an agent that can think gets so many rounds.
DEFAULT_ROUNDS = 4
# `edp`: the product of a call's energy and its time.
Objective = Literal["time", "energy", "edp"]
# What fewer variants may lose of the geometric mean, or of a mix's time, unless it is said.
FEWER_WITHIN = 0.01
# The share of the best time below which looking on for it isn't worth a trial.
ENOUGH = 0.005
# Files for engines are used for months, and two tunings should write the same ones: their searches
# look on for less, in about twice the trials (docs/searching.md).
ENOUGH_OF_A_FLEET = 0.001
FINALISTS = 5
# Of finals, and of those of a search that looks on for less than `ENOUGH`: with 40 the interval of
# a layer of experts of 28 us is 0.6 % wide, which is more than what such a search looks for.
COMPARISON_ROUNDS = 40
CLOSE_COMPARISON_ROUNDS = 96
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")
_UNIT_SECONDS = (3600.0, 60.0, 1.0)


def duration_s(text: str) -> float:
    """Read a time such as `90s`, `5m` or `1h30m`; raise `ValueError` for anything else, and 0."""
    match = _DURATION.fullmatch(text.strip())
    total_s = 0.0
    if match is not None:
        parts = zip(match.groups(), _UNIT_SECONDS, strict=True)
        total_s = sum(float(number) * unit for number, unit in parts if number)
    if total_s <= 0:
        raise ValueError(f"{text!r} is not a time; write it as 90s, 5m or 1h30m")
    return total_s


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that a setting may be: for those who err, and by pydantic's names of bounds."""

    said: str
    bounds: Mapping[str, int]


def whole(least: int, most: int = 2**63 - 1) -> Range:
    """Make a range of whole numbers."""
    return Range(f"a whole number from {least} to {most}", {"ge": least, "le": most})


SHARE = Range("a share of the best time, from 0 to below 1", {"ge": 0, "lt": 1})
SECONDS = Range("a number of seconds from 0 on", {"ge": 0})
MONEY = Range("an amount of money above 0", {"gt": 0})
SEED = whole(0, 2**32 - 1)
# How the words of an option are read: as a file or a folder that is there, as one that need not be,
# as a path, whatever it is, and as what has a syntax of its own.
FILE, FOLDER, NEW_FOLDER, PATH = "file", "folder", "new folder", "path"
SEARCHER, ASSIGNMENT = "searcher", "assignment"
# Commands besides `tune KERNEL.cu` that offer a setting.
RECORD, SERVE = "record", "mcp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: the option of `tune KERNEL.cu`, and what other surfaces say of it.

    `campaign` is what its key in a campaign's file needs, `mcp` how the tool `start` describes it;
    where a surface has no text it does not offer it. `commands` offer it besides `tune KERNEL.cu`.
    `reads` says how an option reads its words, `several` that it may be repeated. `within` bounds
    numbers, `choices` are all that a text may be but for what the program itself says, `unlisted`;
    `remedy` is for a value that cannot be. The option is listed after that of the setting `after`,
    or after the one that is declared before it.
    """

    help: str
    flag: str = ""
    metavar: str | None = None
    reads: str = ""
    within: Range | None = None
    choices: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()
    campaign: str = ""
    mcp: str = ""
    commands: tuple[str, ...] = ()
    remedy: str = ""
    after: str = ""
    several: bool = False
    name: str = ""
    default: object = None

    @property
    def key(self) -> str:
        """The name in a file or a tool's arguments, where a time is a text with its unit."""
        return self.name.removesuffix("_s")

    @property
    def option(self) -> str:
        return self.flag or f"--{self.key.replace('_', '-')}"


def setting(default: T, help_: str, /, **said: Any) -> T:
    """Declare a field of this default as a setting; the words are those of `Setting`."""
    metadata = {"setting": Setting(help=help_, **said)}
    if default == {}:
        return field(default_factory=lambda: default, metadata=metadata)
    return field(default=default, metadata=metadata)


# A table: as many words on a line as it has room for.
# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What decides what a run finds, by the names of Python; a session keeps it as `RunConfig`."""

    space: Path | str | None = setting(None, "The search space; by default "
        "search_spaces/**/KERNEL.yaml.", reads=FILE, commands=(RECORD, SERVE))
    template: Path | str | None = setting(None, "The template; by default the one that the space "
        "names.", reads=FILE)
    device: str = setting(AUTO, "auto (a GPU if there is one, else a recording), cuda, cuda:N, "
        "hip, hip:N (AMD), opencl, opencl:N, recorded, recorded:FILE, host (the CPU: it verifies, "
        "its times mean nothing) or command:PROGRAM (your program times).", metavar="DEVICE",
        campaign="auto, cuda, hip, opencl, recorded, host, hip:N, opencl:N or recorded:FILE",
        mcp="auto, cuda, cuda:N or host (the CPU: to verify, not to time).",
        commands=(RECORD, SERVE))
    gpus: str = setting("", "The GPUs that share the workloads, each timing its own; with "
        "recorded and host, how many of them side by side.", metavar="all|0,1", commands=(RECORD,))
    searcher: str = setting(AUTO, "auto, exhaustive, random, optuna or kernel_tuner:<strategy>.",
        reads=SEARCHER, campaign="a search method, `auto`")
    trials: int | None = setting(None, "How many configs to try on each workload; by default "
        "100, or all where under 200 are valid.", within=whole(1),
        campaign="configs for each workload, `200`", mcp="Configs to try for each workload and "
        "candidate.", commands=(RECORD, SERVE))
    enough: float = setting(ENOUGH, "End a workload's search when the configs left are expected "
        f"to save less than this share of the best time; {ENOUGH:.1%} by default.",
        within=SHARE, remedy="0.001 looks on for gains of 0.1 %",
        campaign="the share of the best time that is not worth looking for, `0.001`",
        commands=(SERVE,))
    time_s: float | None = setting(None, "Stop searching after this time in all: 90s, 5m, 1h30m.",
        within=SECONDS, campaign="a time for each job's search, `20m`", commands=(SERVE,))
    prune: bool = setting(True, "Also try configs that the space's `prune` leaves out as slow, "
        "and values with which nothing has worked.",
        flag="--no-prune", campaign="false: try what `prune` leaves out too",
        mcp="false: try configs too that the search space's `prune` leaves out as slow.",
        commands=(RECORD, SERVE))
    keep_bits: bool = setting(False, "Let only configs win whose outputs equal those of the "
        "space's default config, bit for bit.")
    invariant: bool = setting(False, "Keep the bits of a row whatever the batch, of the outputs "
        "that the space's `rows` names.", campaign="true: keep the bits of rows whatever the batch",
        mcp="true: keep the bits of a row whatever the batch, of the outputs that the search "
        "space's `rows` names.", commands=(RECORD, SERVE))
    mutants: bool = setting(True, "Do not break the baseline to see how many broken versions "
        "verification catches, as the first run of a search space does.", flag="--no-mutants",
        campaign="false: do not see how many broken versions verification catches",
        mcp="false: do not break the baseline to see how many broken versions verification "
        "catches.", commands=(SERVE,))
    objective: Objective = setting("time", "What to minimize: time, energy above idle, or edp "
        "(energy times time). The last two take minutes longer.", choices=get_args(Objective),
        campaign="time, energy or edp")
    surroundings: str = setting(AUTO, "Neighbours to time the kernel between: auto (those that "
        "the space gives each workload, else none), alone, or the name of some that the space "
        "gives.", metavar="NAME", campaign="auto, alone, or a name that the search space gives",
        commands=(RECORD,))
    # True stands for all that the reference names.
    peers: bool | Sequence[str] = setting((), "Compare with the implementations that KERNEL.py "
        "names as peers.", campaign="true: compare with the peers", commands=(RECORD,))
    mix: bool = setting(False, "The workloads are a mix, each as often as the space's `weight` "
        "says: judge by their time in all, not by the mean of their speedups.")
    variants_within: float | None = setting(None, "How much slower than its best config each "
        "workload may run for the sake of fewer variants; by default all of them together, 1 % in "
        "the geometric mean, or of a mix's time.", within=SHARE,
        remedy="0.02 serves a workload up to 2 % slower than its best")
    max_variants: int | None = setting(None, "Keep the best N variants, instead of "
        "--variants-within.", within=whole(1))
    seed: int = setting(0, "The seed of the search; 0 by default.", within=SEED,
        campaign="a whole number, `0`")
    operators: Mapping[str, str] = setting({},
        "The variant of the operator to tune, such as ACTIVATION=gelu; repeatable.",
        flag="--operator", reads=ASSIGNMENT, several=True, commands=(RECORD, SERVE))
    agent: str = setting(AUTO, "Who writes further templates: openai (needs --model), files "
        "(needs --exchange) or literal, which only widens ranges.",
        choices=(AUTO, LITERAL, OPENAI, FILES), unlisted=(MCP,),
        campaign="auto, openai or literal")
    model: str | None = setting(None, "The model to ask, at OPENAI_BASE_URL.", metavar="NAME",
        campaign="the model's name, for openai")
    rounds: int | None = setting(None, "How many templates the agent may write; "
        f"{DEFAULT_ROUNDS} by default, 0 for literal.", within=whole(0),
        campaign="how many templates the agent may write, `4`", mcp="How many rounds there are "
        "at most.")
    profile: bool = setting(True, "Tell the agent times alone: a profile takes seconds.",
        flag="--no-profile")
    policy: str | None = setting(None, "How to choose the template that a round builds on; by "
        f"default greedy, and mcts from {MCTS_ROUNDS} rounds on.", choices=(MCTS, GREEDY, LLM),
        commands=(SERVE,))
    max_tokens: int | None = setting(None, "The most tokens that the model may read and write in "
        "all.", within=whole(1), campaign="tokens of a job in all, `500000`")
    max_cost: float | None = setting(None, "The most that the model may cost in all; needs "
        "--prices.", within=MONEY, campaign="the cost of a job in all, `5.0`; it needs `prices`")
    prices: Path | str | None = setting(None, "A YAML file of prices per million tokens.",
        reads=FILE, campaign="a file of prices")
    exchange: Path | str | None = setting(None, "The folder where --agent files writes requests "
        "and reads answers.", reads=NEW_FOLDER)
    sources: Sequence[Path | str] = setting((), "A folder that the agent may read, such as a "
        "CUTLASS checkout; repeatable.", reads=FOLDER, several=True, commands=(SERVE,))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings(Settings):
    """The settings as somebody gives them, complete with what they are by default."""

    # such as `T=1024,D=4096`
    workloads: str | Sequence[str] = setting((), "Tune for this workload instead of those in the "
        "space; repeatable.", flag="--workload", metavar="T=1024,...", several=True,
        mcp="Problem sizes to tune for instead of those in the search space, such as "
        "`T=1024,D=4096`.", commands=(RECORD, SERVE), after="seed")


@dataclass(frozen=True, kw_only=True)
class CallSettings:
    """How one call of a run goes: nothing that it finds depends on it.

    `session` is the folder of a new session. `copy_session` keeps a copy of it in the store, which
    then must be a PostgreSQL server. `wait_s` is how long to wait for an answer of the agent
    `files`, None for ever; with `step` it has to lie there. `kernel`, `instantiate` and `include`
    are for the draft of a search space, where there is none yet.
    """

    kernel: str | None = setting(None, "The kernel, or the kernels, where the file has several.",
        metavar="NAME[,NAME]", after="the first")
    instantiate: str | Sequence[str] = setting((), "Which instantiation of a template to tune: "
        "'bf16, 8' or 'scale<__nv_bfloat16, 8>'.", metavar="ARGUMENTS", several=True)
    include: Path | str | Sequence[Path | str] = setting((), "Where the project's headers are; "
        "repeatable.", metavar="DIR", reads=PATH, several=True)
    session: Path | str | None = setting(None, "The folder for all results; by default a new one "
        "under sessions/.", reads=NEW_FOLDER, commands=(RECORD, SERVE), after="operators")
    store: str | None = setting(None, "The store of past runs to start from and add to: a file, a "
        "database's URL, or none; by default $TUNE_STORE, else a file of your own.",
        metavar="URL|FILE|none", campaign="a file, a database's URL, or none", commands=(SERVE,))
    copy_session: bool = setting(False, "Copy the session to the store as well, a PostgreSQL "
        "server, while the run goes on.", campaign="true: copy the session to the store as well")
    wait_s: float | None = setting(None, "How long --agent files waits for an answer; by default "
        "for ever.", within=SECONDS, after="exchange")
    step: bool = setting(False, "End with code 4 where --agent files is to answer, to go on with "
        "--resume.")
    jobs: int | None = setting(None, "How many compilers run at a time; by default one for each "
        "core.", within=whole(1), commands=(RECORD, SERVE), after="sources")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachSettings:
    """How a cluster is reached that measures and compiles in the place of this machine."""

    cluster: str | None = setting(None, "Measure and compile on the workers (`tune worker`) of "
        "the Dask scheduler there.", metavar="ADDRESS", campaign="a Dask scheduler's address, "
        "`tls://scheduler:8786`", after="jobs")
    gpu_model: str = setting("", "Which GPUs of the cluster to use, where it has several models: "
        "a part of the name.", metavar="NAME", campaign="a part of a GPU's name, `H200`")
    tls_ca: Path | None = setting(None, "The certificate of the authority that signed all of the "
        "cluster's.",
        metavar="PEM", reads=PATH, campaign="the authority's certificate, a PEM file")
    tls_cert: Path | None = setting(None, "This side's certificate.", metavar="PEM", reads=PATH,
        campaign="the certificate to show, a PEM file")
    tls_key: Path | None = setting(None, "Its key, if that is in another file.",
        metavar="PEM", reads=PATH, campaign="its key, a PEM file")


# fmt: on
def settings_in(*classes: type) -> Iterator[Setting]:
    """List the settings that these classes declare, each once."""
    for one in {one.name: one for declaring in classes for one in fields(declaring)}.values():
        if "setting" in one.metadata:
            stated: Setting = one.metadata["setting"]
            yield replace(stated, name=one.name, default=one.default)


def _all_in_order() -> dict[str, Setting]:
    """Collect all settings in the order of the options of `tune KERNEL.cu`."""
    listed: list[Setting] = []
    for declaring in (Settings, RunSettings, CallSettings, ReachSettings):
        place = len(listed)
        for stated in settings_in(declaring):
            names = [other.name for other in listed]
            if stated.name in names:
                continue  # inherited
            if stated.after:
                place = names.index(stated.after) + 1 if stated.after in names else 0
            listed.insert(place, stated)
            place += 1
    return {stated.name: stated for stated in listed}


SETTINGS = _all_in_order()
Given = TypeVar("Given", RunSettings, CallSettings)


def option_of(name: str) -> str:
    return SETTINGS[name].option


def words_of(given: GivenSettings) -> Iterator[str]:
    """Write settings as the words of the command line that give the same."""
    for name, value in given.items():
        option = option_of(name)
        if name == "peers" and not isinstance(value, bool):
            option = "--peer"
        if isinstance(value, bool):
            if value != bool(SETTINGS[name].default):
                yield option
        elif isinstance(value, Mapping):
            for item in value.items():
                yield from (option, "=".join(item))
        elif isinstance(value, list | tuple):
            for item in value:
                yield from (option, str(item))
        elif SETTINGS[name].within is SECONDS:
            yield from (option, f"{value}s")
        elif value not in (None, ""):
            yield from (option, str(value))


def read_settings(given: GivenSettings) -> RunSettings:
    """Check what somebody gives and complete it; raise `InputError` for what no run can have."""
    return read(RunSettings, given)


def read(declaring: type[Given], given: GivenSettings) -> Given:
    """Check settings of one of the classes above and complete them; raise `InputError`."""
    from pydantic import ValidationError

    try:
        _model(declaring).model_validate(given)  # type: ignore[arg-type] # mypy knows no hash of a type
    except ValidationError as error:
        raise _explain_mistake(declaring, error.errors(include_url=False)[0]) from error
    return declaring(**given)


def _explain_mistake(declaring: type, mistake: Mapping[str, Any]) -> InputError:
    name, message = str(mistake["loc"][0]), mistake["msg"]
    settings = {stated.name: stated for stated in settings_in(declaring)}
    if name not in settings:
        hint = suggest_name(name, settings)
        remedy = f"{hint}there are: {', '.join(settings)}"
        return InputError(f"there is no setting `{name}`", remedy=remedy)
    wrong = settings[name]
    needed = wrong.within.said if wrong.within else " or ".join(wrong.choices)
    needed = f"it is {needed}" if needed else f"{message[0].lower()}{message[1:]}"
    return InputError(
        f"`{name}` is {mistake['input']!r}: {needed}",
        remedy=wrong.remedy or f"give another one, or leave {wrong.option} out",
    )


@cache
def _model(declaring: type) -> type[BaseModel]:
    from pydantic import ConfigDict, create_model

    hints = get_type_hints(declaring)
    typed: Any = {
        stated.name: (_add_range(stated, hints[stated.name]), None)
        for stated in settings_in(declaring)
    }
    strict = ConfigDict(extra="forbid", strict=True)
    made: type[BaseModel] = create_model(declaring.__name__, __config__=strict, **typed)
    return made


def _add_range(of: Setting, kind: Any) -> Any:
    from pydantic import Field

    if of.choices:
        # AUTO and the like are no types for mypy, so the classes above say `str`.
        stated = Literal[(*of.choices, *of.unlisted)]  # type: ignore[valid-type]
        return stated | None if kind == str | None else stated
    if of.within is None:
        return kind
    bounds: Any = of.within.bounds
    return Annotated[kind, Field(allow_inf_nan=False, **bounds)]


def offering(
    surface: Literal["campaign", "mcp"], **special: Any
) -> Callable[[type[Model]], type[Model]]:
    """Add to a pydantic model the settings that a surface of texts and numbers offers.

    Each may be left out, and then is None. `special` are types by key, for what such a surface
    takes another way.
    """
    from pydantic import Field, create_model

    texts: dict[Any, Any] = {
        Path | str | None: str,
        Path | None: str,
        bool | Sequence[str]: bool,
        str | Sequence[str]: list[str],
    }

    def add(model: type[Model]) -> type[Model]:
        offered: dict[str, Any] = {"__doc__": model.__doc__, "__module__": model.__module__}
        for declaring in (RunSettings, CallSettings, ReachSettings):
            hints = get_type_hints(declaring)
            for stated in settings_in(declaring):
                if not (said := getattr(stated, surface)):
                    continue
                kind = _add_range(stated, texts.get(hints[stated.name], hints[stated.name]))
                kind = special.get(stated.key, kind)
                offered[stated.key] = (kind | None, Field(default=None, description=said))
        return create_model(model.__name__, __base__=model, **offered)

    return add


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig(Settings):
    """All that decides what a run does; a session keeps it, and a resumed run compares with it.

    `trials` is per workload and candidate, `time_s` for the whole run; None where there is no such
    bound. A search ends where what is untried is thought to save less than `enough` of the best
    time. `rounds` is how often `agent` may write another candidate, and `policy` chooses the one
    that it builds on. Without `profile` it is told times alone. `max_tokens`, `max_cost` and
    `prices` bound what a model may spend, `exchange` is the folder of the agent `files`, and
    `sources` are folders an agent may read.
    `objective` is what the winners are chosen by; the search itself goes by time. The set of
    variants is the smallest within `variants_within` of each best, or the best `max_variants`, or
    the fewest that lose little in all, which of a `mix` is the sum of times, each as often as
    `weight` says, an expression of the axes.
    `peers` names what the finals compare with besides the baseline. `surveyed` configs are measured
    on each workload whatever the search tries. `surroundings` are those that times are measured in:
    `auto` for the file's own of each workload, `alone`, or the name of some. Without `prune` the
    search tries configs that the space's `prune` leaves out as slow. With `keep_bits` only configs
    whose outputs have the bits of the default config's may win, and with `invariant` those whose
    rows have the same bits in every batch. With `mutants` the first run of a
    space says how many broken versions of its baseline verification catches. `gpus` are those of
    several that share the workloads, "" for the one of `device`.
    """

    space: Path
    template: Path
    workloads: tuple[Workload, ...]
    weight: str = "1"
    peers: tuple[str, ...] = ()
    agent: str = LITERAL
    model: str = ""
    rounds: int = 0
    policy: str = GREEDY
    prices: Path | None = None
    exchange: Path | None = None
    sources: tuple[Path, ...] = ()
    finalists: int = FINALISTS
    comparison_rounds: int = COMPARISON_ROUNDS
    surveyed: int | None = None

    @property
    def weights(self) -> Mapping[Workload, float]:
        """How often each workload of a mix comes; nothing where they are none."""
        if not self.mix:
            return {}
        weight = Expression.parse(self.weight)
        values = {w: weight.evaluate(w.values) for w in self.workloads}
        for workload, value in values.items():
            if isinstance(value, str) or not 0.0 < value < inf:
                raise InputError(
                    f"the weight of {workload} is {value!r}, and --mix needs how often it comes",
                    remedy="have `weight` of the search space say a number above 0",
                )
        return {workload: float(value) for workload, value in values.items()}
