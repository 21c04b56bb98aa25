"""Sources and headers travel by their content: each file once for a host, kept in a folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from tuner.compiler.base import CompileRequest
from tuner.compiler.includes import reachable_files
from tuner.extensions.scale.cluster.messages import LacksFiles, Manifest
from tuner.model.errors import KernelError, WorkerError
from tuner.model.kernel import KernelSpec
from tuner.process.files import atomic_write, read_regular

# What no run has asked for in so long is deleted when a worker starts.
KEPT_S = 30 * 24 * 3600
# Stands for a worker's folder in what it says: the coordinator puts its own folders there. It is a
# character for private use, which JSON has as it is.
_THERE = "\ue000"


@dataclass(frozen=True, slots=True)
class Bundle:
    """Files as another host will see them, and where they lie here.

    `homes` are the folders here, by how their names begin there.
    """

    files: Manifest
    places: Mapping[str, Path]
    homes: Mapping[str, str]

    @classmethod
    def of(cls, named: Iterable[tuple[str, Path]], homes: Mapping[str, str]) -> Bundle:
        """Hash files; raise `KernelError` for one that cannot be read."""
        digests: dict[str, str] = {}
        places: dict[str, Path] = {}
        for name, path in named:
            digests[name] = hashlib.sha256(_content(path)).hexdigest()
            places[digests[name]] = path
        return cls(tuple(sorted(digests.items())), places, homes)

    def contents(self, digests: Iterable[str]) -> dict[str, bytes]:
        """Read what a worker lacks."""
        return {digest: _content(self.places[digest]) for digest in digests}

    def at_home(self, answer: str) -> str:
        """Name the files of this machine in the JSON of an answer."""
        for name, folder in self.homes.items():
            answer = answer.replace(f"{_THERE}{name}", json.dumps(folder, ensure_ascii=False)[1:-1])
        return answer


def names_at_home(text: str, folder: Path) -> str:
    """Take the folder of a bundle on this host out of a text; `Bundle.at_home` is the other way."""
    return text.replace(f"{folder}/", _THERE)


def _content(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        message = f"cannot be read to be sent to a worker: {error.strerror}"
        raise KernelError(message, path=path) from error


def kernel_bundle(spec: KernelSpec) -> tuple[KernelSpec, Bundle]:
    """Collect what a device reads of a kernel; return the kernel with names in place of paths.

    The names keep which file lies beside which. Headers are not among them: compiling needs them.
    """
    paths = dict.fromkeys((spec.path, spec.source, spec.reference, spec.template))
    root = Path(os.path.commonpath([path.parent for path in paths]))
    names = {path: path.relative_to(root).as_posix() for path in paths}
    moved = replace(
        spec,
        path=Path(names[spec.path]),
        source=Path(names[spec.source]),
        reference=Path(names[spec.reference]),
        template=Path(names[spec.template]),
        include_dirs=(),
    )
    home = "" if root == Path() else f"{root}/".replace("//", "/")
    return moved, Bundle.of(((name, path) for path, name in names.items()), {"": home})


def place_spec(spec: KernelSpec, folder: Path) -> KernelSpec:
    """Turn the names of `kernel_bundle` into paths in a folder."""
    return replace(
        spec,
        path=folder / spec.path,
        source=folder / spec.source,
        reference=folder / spec.reference,
        template=folder / spec.template,
    )


def request_bundle(request: CompileRequest) -> tuple[CompileRequest, Bundle]:
    """Collect the headers that a source can reach; include folders become numbers."""
    named: dict[str, Path] = {}
    folders = [Path(folder).resolve() for folder in request.include_dirs]
    for path in reachable_files(request.source, request.include_dirs):
        real = path.resolve()
        for number, folder in enumerate(folders):
            if real.is_relative_to(folder):
                named[f"{number}/{real.relative_to(folder).as_posix()}"] = real
    numbers = tuple(map(str, range(len(folders))))
    homes = {f"{number}/": f"{given}/" for number, given in enumerate(request.include_dirs)}
    return replace(request, include_dirs=numbers), Bundle.of(named.items(), homes)


class FileStore:
    """A host's files by their content, and folders made of them; processes may share it."""

    def __init__(self, directory: Path) -> None:
        self._contents = directory / "contents"
        self._folders = directory / "folders"
        for folder in (self._contents, self._folders):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def lacking(self, files: Manifest) -> LacksFiles | None:
        """Say which contents are not here; None where all are."""
        digests = dict.fromkeys(digest for _, digest in files)
        lacking = tuple(digest for digest in digests if not self._place(digest).is_file())
        return LacksFiles(lacking) if lacking else None

    def put(self, contents: Mapping[str, bytes]) -> None:
        """Keep contents; raise `WorkerError` for one that is not what its name says."""
        for digest, content in contents.items():
            if hashlib.sha256(content).hexdigest() != digest:
                raise WorkerError(f"a file arrived damaged: its SHA-256 is not {digest}")
            atomic_write(self._place(digest), content)

    def folder(self, files: Manifest, *subfolders: str) -> Path:
        """Return a folder that holds these files under their names, and these subfolders."""
        listed = "\n".join(f"{digest} {name}" for name, digest in files)
        content = "\n".join([listed, *subfolders])
        folder = self._folders / hashlib.sha256(content.encode()).hexdigest()
        if folder.is_dir():
            os.utime(folder)
            return folder
        path = folder.with_name(f".{folder.name}.{os.getpid()}.{time.monotonic_ns()}")
        for name in subfolders:
            (path / name).mkdir(parents=True, exist_ok=True)
        path.mkdir(exist_ok=True)
        for name, digest in files:
            place = path / _inside(name)
            place.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(place, read_regular(self._place(digest)))
        try:
            path.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(path, ignore_errors=True)
        return folder

    def prune(self, kept_s: float = KEPT_S) -> None:
        """Delete what was not used for so long."""
        oldest = time.time() - kept_s
        for path in (*self._contents.iterdir(), *self._folders.iterdir()):
            with suppress(OSError):
                if path.stat().st_mtime < oldest:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _place(self, digest: str) -> Path:
        return self._contents / _inside(digest)


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise WorkerError(f"a file's name leads out of its folder: {name!r}")
    return name
