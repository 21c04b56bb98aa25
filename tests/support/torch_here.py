"""The mark of tests that need PyTorch, which `tune` itself does not depend on."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
