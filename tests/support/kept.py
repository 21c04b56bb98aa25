"""What compilers made for the tests, kept between runs of them, by content.

The keys of `Cache` hold a request and its compiler. That the code of ours that decides a result is
the same is said by the folder's name: code that was edited begins with an empty one.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

import platformdirs

from tuner.process.files import atomic_write

ROOT = Path(__file__).resolve().parents[2]
DECIDING = ("tuner/compiler", "tuner/extensions/cpu", "tuner/extensions/backends")
KEPT_DAYS, KEPT_FOLDERS = 14, 6
# What a compiler said, beside what it made: that may be nothing.
SAID = "said.log"
SOURCES = (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".txt")


@cache
def kept_folder() -> Path:
    """Return the folder of this code's results; those of code that nobody tests now are deleted."""
    folder = _above() / _digest(path for package in DECIDING for path in _files(ROOT / package))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "used").touch()
    others = sorted(_above().glob("*/used"), key=_age_days)
    for number, used in enumerate(others):
        # A run that is under way began within the hour.
        if _age_days(used) > (KEPT_DAYS if number < KEPT_FOLDERS else 1 / 24):
            shutil.rmtree(used.parent, ignore_errors=True)
    for built in _above().glob("*.tar.gz"):
        if _age_days(built) > KEPT_DAYS:
            built.unlink(missing_ok=True)
    return folder


def build(
    command: Sequence[str | Path],
    folder: Path,
    *,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 280.0,
) -> str:
    """Run a compiler on a folder's sources, or put there what it made of them; return its words.

    What else it reads is of the system, or of the packages that are installed with nvcc. Raises
    `CalledProcessError` where it fails.
    """
    words = [str(word).replace(str(folder), ".") for word in command]
    sources = (path for path in _files(folder) if path.suffix in SOURCES)
    content = json.dumps([words, _versions(), _digest(sources, folder)])
    kept = _above() / f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.tar.gz"
    # What a killed machine left is made anew.
    with suppress(FileNotFoundError, tarfile.ReadError, EOFError):
        data = kept.read_bytes()
        kept.touch()
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(folder, filter="fully_trusted")
        return (folder / SAID).read_text(encoding="utf-8")
    before = {path: path.stat().st_mtime_ns for path in _files(folder)}
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment,
        timeout=timeout_s,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        failure = subprocess.CalledProcessError(done.returncode, words, done.stdout)
        failure.add_note(done.stdout[-8000:])
        raise failure
    (folder / SAID).write_text(done.stdout, encoding="utf-8")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for path in _files(folder):
            if before.get(path) != path.stat().st_mtime_ns:
                archive.add(path, path.relative_to(folder))
    atomic_write(kept, packed.getvalue())
    return done.stdout


def _above() -> Path:
    return platformdirs.user_cache_path("kernel-tune-tests")


def _age_days(path: Path) -> float:
    return (time.time() - path.stat().st_mtime) / 86400


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path


def _digest(paths: Iterator[Path], root: Path = ROOT) -> str:
    content = hashlib.sha256()
    for path in paths:
        data = path.read_bytes()
        content.update(f"{path.relative_to(root)}\0{len(data)}\0".encode() + data)
    return content.hexdigest()[:16]


@cache
def _versions() -> list[str]:
    """Name the compilers and the packages whose headers and libraries they read."""
    found = []
    for name in ("g++", "gcc", "cmake", "nvcc"):
        if path := shutil.which(name):
            asked = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
            found.append(asked.stdout)
    packages = {one.metadata["Name"]: one.version for one in metadata.distributions()}
    return found + [f"{name} {packages[name]}" for name in sorted(packages) if "nvidia" in name]
