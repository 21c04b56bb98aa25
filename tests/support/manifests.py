"""Configs and manifests of runs, with what a test says of them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from tuner.model.settings import RunConfig
from tuner.session.records import Manifest
from tuner.space.load import load_definition
from tuner.space.plan import Plan
from tuner.space.template import Template

_OF_CONFIG = frozenset(field.name for field in fields(RunConfig))


def manifest(**given: Any) -> Manifest:
    """Make a manifest; what belongs to the config goes there."""
    config: dict[str, Any] = {
        "space": Path("scale.yaml"),
        "template": Path("scale.cu.j2"),
        "workloads": (),
    }
    config |= {name: value for name, value in given.items() if name in _OF_CONFIG}
    made: dict[str, Any] = {
        "kernel": "scale",
        "space_sha": "",
        "template_sha": "",
        "source_sha": "",
        "reference_sha": "",
        "tuner_version": "0.1.0",
        "command": ("tune", "scale.cu"),
        "created": "2026-11-20T10:00:00+00:00",
    }
    made |= {name: value for name, value in given.items() if name not in _OF_CONFIG}
    return Manifest(config=RunConfig(**config), **made)


def plan_of(space: Path, **changes: Any) -> Plan:
    """Read a search space as a plan that tries every config of each workload."""
    definition = load_definition(space)
    spec = definition.spec
    config = RunConfig(
        space=spec.path,
        template=spec.template,
        **{"workloads": spec.workloads, "searcher": "exhaustive", **changes},
    )
    return Plan(config, spec, definition.space, Template.load(spec.template, spec.include_dirs))
