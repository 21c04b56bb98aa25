"""Wheels of inference engines from PyPI, and the packages that importing them needs.

They are kept beside this Python.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import pytest
from filelock import FileLock


@dataclass(frozen=True)
class Engine:
    """A release, the platform of its wheel, and the packages that importing it needs."""

    name: str
    version: str
    platform: tuple[str, ...]
    needs: str

    def wheel(self) -> Path:
        """Return the folder that has its Python; skip the test where it can't be had."""
        with FileLock(self._kept() / "wheel.lock"):
            found = self._kept() / "wheel"
            if not (found / self.name).exists():
                wanted = (*self.platform, "--only-binary=:all:", f"{self.name}=={self.version}")
                pip("download", "--no-deps", "--dest", str(self._kept()), *wanted)
                (downloaded,) = self._kept().glob(f"{self.name}-*.whl")
                with ZipFile(downloaded) as archive:
                    archive.extractall(found, filter(_is_wanted, archive.namelist()))
                downloaded.unlink()
        return found

    def packages(self) -> Path:
        """Return the folder of the packages; skip the test where they can't be had."""
        with FileLock(self._kept() / "packages.lock"):
            found = self._kept() / f"packages-{sys.version_info.major}.{sys.version_info.minor}"
            if not (found / "complete").exists():
                wanted = ("--no-compile", "--target", str(found), *self.needs.split())
                pip("install", "--no-deps", "--upgrade", *wanted)
                (found / "complete").touch()
        return found

    def _kept(self) -> Path:
        found = Path(sys.prefix) / f".{self.name}" / self.version
        found.mkdir(parents=True, exist_ok=True)
        return found


def _is_wanted(name: str) -> bool:
    """Leave out what is compiled, which nothing loads without a GPU."""
    return not name.endswith((".so", ".cubin", ".bin"))


def pip(*arguments: str) -> None:
    """Call pip; skip the test where it fails."""
    command = [sys.executable, "-m", "pip", *arguments, "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        pytest.skip(f"pip {arguments[0]}: {said[-1] if said else done.returncode}")


# What a release pins, and what that needs; torch is there, of others there are stand-ins.
SGLANG = Engine(
    "sglang",
    "0.5.17",
    # Of any Python, and with the tag that SGLang's wheels have had since 0.5.11.
    ("--platform=manylinux_2_34_x86_64", "--python-version=3.12"),
    """
    aiohappyeyeballs aiohttp aiosignal annotated-doc apache-tvm-ffi==0.1.11 certifi
    charset-normalizer compressed-tensors==0.20.0 dill==0.4.1 distro einops fastapi==0.121.3
    frozenlist fsspec gguf==0.19.0 hf-xet httpcore<2 httpx<1 huggingface-hub>=1.5,<2 interegular
    loguru==0.7.3 msgspec==0.22.0 multidict openai==2.6.1 orjson==3.13.0 partial-json-parser
    propcache psutil pybase64==1.5.1 pyyaml pyzmq==27.3.0 regex requests safetensors
    sentencepiece setproctitle==1.3.8 starlette==0.50.0 tokenizers==0.22.2 tqdm
    transformers==5.12.1 urllib3 xgrammar yarl
    """,
)
VLLM = Engine(
    "vllm",
    "0.32.0",
    ("--platform=manylinux_2_28_x86_64", "--python-version=3.12"),
    """
    aiohappyeyeballs aiohttp aiosignal annotated-doc apache-tvm-ffi==0.1.11 astor blake3
    cachetools cbor2 certifi charset-normalizer cloudpickle compressed-tensors==0.17.0
    depyf==0.20.0 dill distro einops fastapi>=0.133,<0.137 frozenlist gguf hf-xet httpcore<2
    httpx<1 huggingface-hub>=1.31,<2 jsonschema lark llguidance>=1.7,<1.8 loguru msgspec
    multidict openai>=2.25,<3 openai-harmony opentelemetry-api<1.46 orjson packaging
    partial-json-parser pillow prometheus-client propcache protobuf psutil py-cpuinfo pybase64
    python-json-logger pyyaml pyzmq regex requests safetensors setproctitle starlette<1.11
    tiktoken tokenizers>=0.23.2 tqdm transformers>=5.16.1,<5.20 urllib3 uvloop xgrammar yarl
    """,
)
