"""Compile results on disk, by what they were made from; several runs may share the folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import stat
import time
from collections.abc import Callable
from dataclasses import asdict
from math import inf
from pathlib import Path

import platformdirs

from tuner.compiler.base import CompileRequest, CompileResult, compiler_options
from tuner.compiler.includes import include_digest
from tuner.model.trial import Resources
from tuner.process.files import atomic_write, read_regular
from tuner.process.protocol import MAX_MESSAGE_BYTES, pack, unpack

logger = logging.getLogger(__name__)

MAX_BYTES = 2 << 30
# Pruning looks at every entry, so it is done rarely; it frees more than a little at once.
PRUNE_EVERY_PUTS = 2000
PRUNE_EVERY_S = 24 * 3600
PRUNE_TO_SHARE = 0.8

# Change it with anything that gives another result for the same request.
_FORMAT = 3
_MAGIC = b"tuner-compiled\n"
_DIGEST_BYTES = hashlib.sha256().digest_size


def user_cache_dir() -> Path:
    """Return the folder for all that can be made again: `TUNER_CACHE_DIR`, or the user's."""
    override = os.environ.get("TUNER_CACHE_DIR")
    return Path(override or platformdirs.user_cache_dir("kernel-tune")).absolute()


def cache_key(request: CompileRequest, compiler: str, include_digest: str) -> str:
    """Hash all that decides a result; the exact source, for errors name its lines."""
    asked = [request.source, request.kernels, request.architecture, compiler_options(request)]
    content = [_FORMAT, compiler, *asked, request.include_dirs, include_digest]
    content += filter(None, [request.work_groups])
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


class Cache:
    """Keep results in files that are written whole or not at all, the oldest pruned.

    Errors are kept too; a compile that was killed is not. A damaged entry counts as missing.
    """

    def __init__(self, directory: Path | None = None, *, max_bytes: int = MAX_BYTES) -> None:
        self.directory = directory or user_cache_dir()
        self._max_bytes = max_bytes
        self._entries = self.directory / "compiled"
        self._puts = 0

    def get(self, key: str) -> CompileResult | None:
        """Return the result stored under `key`, marked as cached, or None."""
        path = self._entries / key
        try:
            data = read_regular(path, MAX_MESSAGE_BYTES)
        except OSError:
            return None
        body = data[len(_MAGIC) + _DIGEST_BYTES :]
        if not data.startswith(_start(key, body)):
            logger.warning("damaged cache entry %s: compiling again", path)
            return None
        content, cubin, _ = unpack(body)
        resources = {name: Resources(**used) for name, used in content["resources"].items()}
        with contextlib.suppress(OSError):
            os.utime(path)
        return CompileResult(cubin, content["lowered"], resources, content["error"], cached=True)

    def put(self, key: str, result: CompileResult) -> None:
        """Store a result; a folder that cannot be written costs a warning, not the run."""
        if result.timed_out:
            return
        path = self._entries / key
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            resources = {name: asdict(used) for name, used in result.resources.items()}
            content = {
                "lowered": dict(result.lowered),
                "resources": resources,
                "error": result.error,
            }
            body = pack(content, result.cubin)
            atomic_write(path, (_start(key, body) + body))
            self._puts += 1
            stamp = self.directory / "compiled.pruned"
            due = self._puts % PRUNE_EVERY_PUTS == 0
            if self._puts == 1:
                # Of a clock that was wrong the stamp may lie ahead.
                age_s = time.time() - stamp.stat().st_mtime if stamp.exists() else inf
                due = not 0.0 <= age_s <= PRUNE_EVERY_S
            if due:
                atomic_write(stamp, b"")
                self.prune()
        except OSError as error:
            logger.warning("cannot write to the cache: %s", error)

    def prune(self) -> None:
        """Delete the entries used longest ago if all together are over the size bound."""
        entries = []
        for path in self._entries.iterdir():
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if stat.S_ISREG(status.st_mode):
                    entries.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in entries)
        if total <= self._max_bytes:
            return
        for _, size, path in sorted(entries):
            if total <= self._max_bytes * PRUNE_TO_SHARE:
                return
            path.unlink(missing_ok=True)
            total -= size


def _start(key: str, body: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(key.encode() + body).digest()


def recall_or_compile(
    cache: Cache | None,
    request: CompileRequest,
    compiler: str,
    compile_anew: Callable[[], tuple[CompileResult, bool]],
) -> CompileResult:
    """Return what is stored of a request, else compile; a result that lasts is stored."""
    key = cache_key(request, compiler, include_digest(request.source, request.include_dirs))
    if cache and (stored := cache.get(key)) is not None:
        return stored
    result, lasting = compile_anew()
    if cache and lasting:
        cache.put(key, result)
    return result
