"""The tables of a session's database."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
)

from tuner.model.trial import INITIAL

# Raise it with every change that an older version could not read.
SCHEMA_VERSION = 6
# "tune" in ASCII: tells a session from any other SQLite file
APPLICATION_ID = 0x74756E65

metadata = MetaData()


def _workload() -> tuple[Column[Any], ...]:
    return Column("workload", String, nullable=False), Column("held_out", Boolean, nullable=False)


def _measurement(*, nullable: bool = False) -> tuple[Column[Any], ...]:
    return (
        Column("times_us", LargeBinary, nullable=nullable),  # little-endian float64
        Column("median_us", Float),
        Column("calls_per_replay", Integer, nullable=nullable),
        Column("buffer_sets", Integer, nullable=nullable),
        Column("stopped_early", Boolean, nullable=nullable),
        Column("wall_ratio", Float),
    )


def _candidate() -> Column[Any]:
    # The default is for the rows of sessions that knew one candidate only.
    return Column("candidate", String, nullable=False, server_default=INITIAL)


def _learned() -> tuple[Column[Any], ...]:
    return (
        Column("resources", String),  # JSON, as the next one
        Column("occupancy", String),
    )


Table(
    "session",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("manifest", String, nullable=False),
    Column("state", String, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("writer", String, nullable=False),
)
Table(
    "environment",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String, nullable=False, unique=True),
    Column("value", String, nullable=False),
)
Table(
    "candidates",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String, nullable=False, unique=True),
    Column("template_text", String, nullable=False),
    Column("space_text", String, nullable=False),
    Column("parent", String, ForeignKey("candidates.name")),
)
Table(
    "trials",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("candidate", String, ForeignKey("candidates.name"), nullable=False),
    *_workload(),
    Column("config", String, nullable=False),  # JSON
    Column("config_key", String, nullable=False),
    Column("stage", String, nullable=False),
    Column("status", String, nullable=False),
    Column("reason", String, nullable=False),
    *_learned(),
    Column("correctness", String),
    Column("seconds", Float, nullable=False),
    Column("elapsed_s", Float, nullable=False),
    UniqueConstraint("candidate", "workload", "config_key", "stage"),
)
Table(
    "measurements",
    metadata,
    Column("trial", Integer, ForeignKey("trials.id"), primary_key=True),
    *_measurement(),
)
Table(
    "baselines",
    metadata,
    Column("id", Integer, primary_key=True),
    *_workload(),
    *_measurement(),
    *_learned(),
    Column("correctness", String),
    UniqueConstraint("workload"),
)
Table(
    "checks",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("kind", String, nullable=False),
    *_workload(),
    Column("config", String, nullable=False),  # JSON
    Column("passed", Boolean),
    Column("reason", String, nullable=False),
    Column("device", String, nullable=False),
    Column("created", String, nullable=False),
    _candidate(),
)
Table(
    "comparisons",
    metadata,
    Column("id", Integer, primary_key=True),
    *_workload(),
    Column("finalists", String, nullable=False),  # JSON, as the next one: [round][program]
    Column("rounds_us", String, nullable=False),
    Column("paired", Boolean, nullable=False),
    Column("isolated_us", String, nullable=False),
    # JSON: the finalists' candidates, and the names of peers
    Column("candidates", String, nullable=False, server_default="[]"),
    Column("peers", String, nullable=False, server_default="[]"),
)
Table(
    "peers",
    metadata,
    Column("id", Integer, primary_key=True),
    *_workload(),
    Column("name", String, nullable=False),
    Column("status", String, nullable=False),
    Column("reason", String, nullable=False),
    Column("created", String, nullable=False),
)
Table(
    "energies",
    metadata,
    Column("id", Integer, primary_key=True),
    *_workload(),
    Column("kind", String, nullable=False),
    Column("candidate", String),
    Column("config", String),  # JSON
    Column("energy_j", Float, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("time_us", Float),
    Column("buffer_sets", Integer, nullable=False),
    Column("cold", Boolean, nullable=False),
    Column("temperature_c", Integer),
    Column("clock_mhz", Integer),
    Column("limited_by", String, nullable=False),  # JSON
    Column("created", String, nullable=False),
)
Table(
    "results",
    metadata,
    Column("id", Integer, primary_key=True),
    *_workload(),
    Column("baseline_us", Float, nullable=False),
    Column("tuned_us", Float, nullable=False),
    Column("speedup", Float, nullable=False),
    Column("low", Float, nullable=False),
    Column("high", Float, nullable=False),
    Column("paired", Boolean, nullable=False),
    Column("roofline_share", Float, nullable=False),
    Column("config", String, nullable=False),
    *_learned(),
    Column("baseline_wins", Boolean, nullable=False),
    Column("isolated_us", Float),
    Column("isolated_baseline_us", Float),
    _candidate(),
    UniqueConstraint("workload"),
)
Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("kind", String, nullable=False),
    Column("content", String, nullable=False),  # JSON
)
