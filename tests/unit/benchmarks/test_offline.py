"""What is packed for a GPU machine that reaches no package index."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import offline
import pytest


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("sglang/srt/server_args.py", True),
        ("sgl_kernel/sm90/common_ops.abi3.so", True),
        ("sgl_kernel/sm100/common_ops.abi3.so", False),
        ("sgl_kernel/flash_ops.abi3.so", False),
        ("sglang/srt/grpc/_core.abi3.so", False),
        ("sglang/test/test_utils.py", False),
        ("ipython-9.18.1.data/data/share/man/man1/ipython.1", False),
    ],
)
def test_of_sglang_only_what_its_kernels_need_is_unpacked(name: str, needed: bool) -> None:
    assert offline.is_needed(name) is needed


def test_what_the_project_requires_is_resolved_without_what_is_there_or_is_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def pip(*words: str) -> str:
        asked.append(words)
        if words[0] == "install":
            names = {"SQLAlchemy": "2.1", "numpy": "2.4", "pydantic": "2.14", "platformdirs": "4"}
            found = [{"metadata": {"name": n, "version": v}} for n, v in names.items()]
            return json.dumps({"install": found})
        wheels = Path(words[words.index("--dest") + 1])
        wheels.mkdir()
        with ZipFile(wheels / "sglang.whl", "w") as archive:
            archive.writestr("sglang/utils.py", "from IPython.display import HTML")
            archive.writestr("sglang/test/test_utils.py", "")
        return ""

    monkeypatch.setattr(offline, "_pip", pip)
    has, made = tmp_path / "has.txt", tmp_path / "made.tar.xz"
    has.write_text("numpy==2.5.2\neinops\n", encoding="utf-8")
    words = [str(made), "--has", str(has), "--without", "kernel_tuner"]
    monkeypatch.setattr(sys, "argv", ["offline.py", *words])
    offline.main()
    resolving, downloading = asked
    assert "kernel_tuner>=1.5,<1.6" not in resolving
    assert "optuna>=5.0,<6" in resolving
    assert {"sqlalchemy==2.1", "platformdirs==4", "pydantic==2.12.5"} <= {*downloading}
    assert {"numpy==2.4", "pydantic==2.14", "einops"}.isdisjoint(downloading)
    with tarfile.open(made) as archive:
        archive.extractall(tmp_path / "site", filter="data")
    assert not (tmp_path / "site/sglang/test").exists()
    assert (tmp_path / "site/sglang/utils.py").exists()
    monkeypatch.syspath_prepend(tmp_path / "site")
    from IPython.display import HTML  # type: ignore[import-not-found,unused-ignore]

    assert callable(HTML)
