"""The tables of a store. Rows are added and forgotten, never changed."""

from __future__ import annotations

from sqlalchemy import Column, Double, ForeignKey, Integer, MetaData, String, Table, Text

# Raise it with every change that an older version could not read.
SCHEMA_VERSION = 1

metadata = MetaData()

# The prefix is for servers, where a database may hold the tables of other programs. Lengths are
# for databases that need them: JSON is Text, for it may be long.
about = Table(
    "tune_about",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("value", String(64), nullable=False),
)
searches = Table(
    "tune_searches",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("uid", String(64), nullable=False, unique=True),
    Column("kernel", String(255), nullable=False, index=True),
    Column("operators", Text, nullable=False),  # JSON
    Column("device", String(255), nullable=False),
    Column("architecture", String(16), nullable=False),
    Column("candidate", String(255), nullable=False),
    Column("template_sha", String(64), nullable=False),
    Column("parameters", Text, nullable=False),  # JSON
    Column("tuner_version", String(64), nullable=False),
    Column("created", String(64), nullable=False),
    Column("state", String(32), nullable=False),
)
workloads = Table(
    "tune_workloads",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("search", Integer, ForeignKey("tune_searches.id"), nullable=False, index=True),
    Column("axes", Text, nullable=False),  # JSON: pairs, in the order of the axes
    Column("baseline_us", Double),
)
configs = Table(
    "tune_configs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("workload", Integer, ForeignKey("tune_workloads.id"), nullable=False, index=True),
    Column("config", Text, nullable=False),  # JSON: pairs, in the order of the space
    Column("status", String(32), nullable=False),
    Column("time_us", Double),
)
