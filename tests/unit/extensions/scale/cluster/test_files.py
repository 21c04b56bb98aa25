"""Files travel by what they hold, each once, and lie on the other side as they lay here."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.compiler.base import CompileRequest
from tuner.extensions.scale.cluster.files import (
    FileStore,
    kernel_bundle,
    names_at_home,
    place_spec,
    request_bundle,
)
from tuner.model.errors import KernelError, WorkerError
from tuner.model.kernel import KernelSpec

PATHS = ("path", "source", "reference", "template")


def sent(store: FileStore, bundle) -> int:
    """Send what the store lacks; return how many files that were."""
    lacking = store.lacking(bundle.files)
    if lacking is None:
        return 0
    contents = bundle.contents(lacking.digests)
    store.put(contents)
    assert store.lacking(bundle.files) is None
    return len(contents)


def test_a_kernel_lies_there_as_here_and_travels_once(spec: KernelSpec, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    moved, bundle = kernel_bundle(spec)
    assert sent(store, bundle) == 4
    there = place_spec(moved, store.folder(bundle.files))
    for name in PATHS:
        before, after = getattr(spec, name), getattr(there, name)
        assert after != before
        assert after.read_bytes() == before.read_bytes()
    assert there.source.parent == there.reference.parent
    assert sent(store, kernel_bundle(spec)[1]) == 0


@pytest.mark.parametrize("below", ["project/", "", "/a/b/"])
def test_what_is_said_of_a_file_there_is_said_of_it_here(
    spec: KernelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    monkeypatch.chdir(spec.path.parent if not below else tmp_path)
    names = {field: Path(below + getattr(spec, field).name) for field in PATHS}
    monkeypatch.setattr(
        "tuner.extensions.scale.cluster.files._content", lambda path: str(path).encode()
    )
    bundle = kernel_bundle(replace(spec, **names))[1]
    folder = tmp_path / "there"
    said = names_at_home(f"see {folder}/scale.py:5 and {folder}/scale.cu", folder)
    assert bundle.at_home(said) == f"see {below}scale.py:5 and {below}scale.cu"


def test_files_that_share_the_root_alone_are_named_as_they_are(
    spec: KernelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tuner.extensions.scale.cluster.files._content", lambda path: str(path).encode()
    )
    apart = replace(spec, **{field: Path(f"/{field}/file") for field in PATHS})
    said = names_at_home(f"{tmp_path}/reference/file", tmp_path)
    assert kernel_bundle(apart)[1].at_home(said) == "/reference/file"


def test_only_what_changed_travels_again(spec: KernelSpec, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    first = kernel_bundle(spec)[1]
    sent(store, first)
    spec.reference.write_text("def reference(xp, inputs, axes): return {}\n", encoding="utf-8")
    second = kernel_bundle(spec)[1]
    assert sent(store, second) == 1
    assert store.folder(first.files) != store.folder(second.files)


def test_headers_that_a_source_reaches_go_along(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    (first / "deep").mkdir(parents=True)
    second.mkdir()
    (first / "a.h").write_text('#include "deep/b.h"\n', encoding="utf-8")
    (first / "deep" / "b.h").write_text("int b;\n", encoding="utf-8")
    (first / "unused.h").write_text("int c;\n", encoding="utf-8")
    folders = (str(first), str(second))
    request = CompileRequest('#include "a.h"\n', ("k",), "sm_90a", (), folders)
    moved, bundle = request_bundle(request)
    assert moved.include_dirs == ("0", "1")
    assert [name for name, _ in bundle.files] == ["0/a.h", "0/deep/b.h"]
    store = FileStore(tmp_path / "store")
    sent(store, bundle)
    folder = store.folder(bundle.files, *moved.include_dirs)
    assert (folder / "0/deep/b.h").read_text(encoding="utf-8") == "int b;\n"
    assert (folder / "1").is_dir()
    error = names_at_home(f"{folder}/0/deep/b.h(1): error; {folder}/1/x.h", folder)
    assert bundle.at_home(error) == f"{first}/deep/b.h(1): error; {second}/x.h"
    assert store.folder(bundle.files, *moved.include_dirs) == folder


def test_what_is_not_what_it_says_is_refused(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    digest = hashlib.sha256(b"good").hexdigest()
    with pytest.raises(WorkerError, match="arrived damaged"):
        store.put({digest: b"bad"})
    store.put({digest: b"good"})
    for name in ("../out", "/etc/passwd", "a/../../b"):
        with pytest.raises(WorkerError, match="leads out of its folder"):
            store.folder(((name, digest),))


def test_a_file_that_cannot_be_read_is_named(spec: KernelSpec) -> None:
    gone = replace(spec, reference=spec.reference.with_name("gone.py"))
    with pytest.raises(KernelError, match=r"gone\.py: cannot be read to be sent"):
        kernel_bundle(gone)


def test_what_nobody_used_for_long_is_deleted(spec: KernelSpec, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    bundle = kernel_bundle(spec)[1]
    sent(store, bundle)
    folder = store.folder(bundle.files)
    store.prune()
    assert folder.is_dir()
    for path in (*folder.parent.iterdir(), *(tmp_path / "store/contents").iterdir()):
        os.utime(path, (0, 0))
    store.prune()
    assert not folder.exists()
    assert store.lacking(bundle.files) is not None
