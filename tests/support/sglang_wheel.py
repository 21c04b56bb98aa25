"""SGLang's wheel from PyPI, and the packages that importing it needs, kept beside this Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from filelock import FileLock

VERSION = "0.5.17"
KEPT = Path(sys.prefix) / ".sglang" / VERSION
# Of any Python, and with the tag that SGLang's wheels have had since 0.5.11.
WHEEL = ("--platform=manylinux_2_34_x86_64", "--python-version=3.12", "--only-binary=:all:")
# What this release pins, and what that needs; torch is there, of others there are stand-ins.
# fmt: off
PACKAGES = (
    "aiohappyeyeballs", "aiohttp", "aiosignal", "annotated-doc", "apache-tvm-ffi==0.1.11",
    "certifi", "charset-normalizer", "compressed-tensors==0.20.0", "dill==0.4.1", "distro",
    "einops", "fastapi==0.121.3", "frozenlist", "fsspec", "gguf==0.19.0", "hf-xet", "httpcore<2",
    "httpx<1", "huggingface-hub>=1.5,<2", "interegular", "loguru==0.7.3", "msgspec==0.22.0",
    "multidict", "openai==2.6.1", "orjson==3.13.0", "partial-json-parser", "propcache", "psutil",
    "pybase64==1.5.1", "pyyaml", "pyzmq==27.3.0", "regex", "requests", "safetensors",
    "sentencepiece", "setproctitle==1.3.8", "starlette==0.50.0", "tokenizers==0.22.2", "tqdm",
    "transformers==5.12.1", "urllib3", "xgrammar", "yarl",
)
# fmt: on


def wheel() -> Path:
    """Return the folder that has `sglang`; skip the test where it can't be had."""
    with FileLock(_kept() / "wheel.lock"):
        found = KEPT / "wheel"
        if not (found / "sglang").exists():
            pip("download", "--no-deps", *WHEEL, "--dest", str(KEPT), f"sglang=={VERSION}")
            (downloaded,) = KEPT.glob("sglang-*.whl")
            with ZipFile(downloaded) as archive:
                archive.extractall(found)
            downloaded.unlink()
    return found


def packages() -> Path:
    """Return the folder of the packages; skip the test where they can't be had."""
    with FileLock(_kept() / "packages.lock"):
        found = KEPT / f"packages-{sys.version_info.major}.{sys.version_info.minor}"
        if not (found / "complete").exists():
            pip("install", "--no-deps", "--upgrade", "--target", str(found), *PACKAGES)
            (found / "complete").touch()
    return found


def _kept() -> Path:
    KEPT.mkdir(parents=True, exist_ok=True)
    return KEPT


def pip(*arguments: str) -> None:
    """Call pip; skip the test where it fails."""
    command = [sys.executable, "-m", "pip", *arguments, "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        pytest.skip(f"pip {arguments[0]}: {said[-1] if said else done.returncode}")
