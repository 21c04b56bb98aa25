"""What compilers made for the tests, kept between runs of them, by content.

The keys of `Cache` hold a request and its compiler. That the code of ours that decides a result is
the same is said by the folder's name: code that was edited begins with an empty one.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from functools import cache
from pathlib import Path

import platformdirs

ROOT = Path(__file__).resolve().parents[2]
DECIDING = ("tuner/compiler", "tuner/extensions/cpu", "tuner/extensions/backends")
KEPT_DAYS, KEPT_FOLDERS = 14, 6


@cache
def kept_folder() -> Path:
    """Return the folder of this code's results; those of code that nobody tests now are deleted."""
    above = platformdirs.user_cache_path("kernel-tune-tests")
    folder = above / _digest()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "used").touch()
    others = sorted(above.glob("*/used"), key=lambda path: -path.stat().st_mtime)
    for number, used in enumerate(others):
        age_days = (time.time() - used.stat().st_mtime) / 86400
        # A run that is under way began within the hour.
        if age_days > KEPT_DAYS or (number >= KEPT_FOLDERS and age_days > 1 / 24):
            shutil.rmtree(used.parent, ignore_errors=True)
    return folder


def _digest() -> str:
    content = hashlib.sha256()
    for package in DECIDING:
        for path in sorted((ROOT / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                content.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return content.hexdigest()[:16]
