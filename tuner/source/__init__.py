"""What a CUDA source says: its kernels and their parameters, constants and launches."""

from __future__ import annotations

from tuner.source.host import hide_host_code
from tuner.source.kernels import check_arguments
from tuner.source.reader import parse_source, read_source, source_text

__all__ = ["check_arguments", "hide_host_code", "parse_source", "read_source", "source_text"]
