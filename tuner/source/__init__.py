"""What a CUDA source says: its kernels and their parameters, constants and launches."""

from __future__ import annotations

from tuner.source.facts import (
    Constant,
    KernelFunction,
    KernelParameter,
    LaunchSite,
    SourceFile,
    TemplateParameter,
)
from tuner.source.host import Edit, apply_edits, hide_host_code, host_edits, implied_headers
from tuner.source.kernels import check_arguments
from tuner.source.reader import parse_source, read_source

__all__ = [
    "Constant",
    "Edit",
    "KernelFunction",
    "KernelParameter",
    "LaunchSite",
    "SourceFile",
    "TemplateParameter",
    "apply_edits",
    "check_arguments",
    "hide_host_code",
    "host_edits",
    "implied_headers",
    "parse_source",
    "read_source",
]
