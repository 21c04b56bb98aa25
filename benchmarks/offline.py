"""Pack what a GPU machine that reaches no package index lacks for `tune` and SGLang's kernels.

    python benchmarks/offline.py FILE.tar.xz [--has NAMES] [--without NAME ...] [--python 3.12]

NAMES is a file with a package on each line, `name` or `name==version` as `pip freeze` prints it,
that the machine has; PyTorch, Triton and CuPy have to be among them. There,

    mkdir site && tar -xJf FILE.tar.xz -C site && python3 -m compileall -q -j 0 site
    export PYTHONPATH=$PWD:$PWD/site HF_HUB_OFFLINE=1

and benchmarks/fused_moe.py and its peers run (seen on H200s). Uncompiled, each process of a run
takes over twice as long to import SGLang. Left out of it is what these need not: diffusion
models, attention kernels and those for other GPUs, the compiled parts of its servers. IPython,
which SGLang imports and its kernels do not call, has a stand-in. Packed are some 40 MB.
"""

from __future__ import annotations

import argparse
import configparser
import fnmatch
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Collection, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from environment import ROOT

# Wheels are named after the oldest C library that they run with.
PLATFORMS = (
    *("manylinux1_x86_64", "manylinux2014_x86_64"),
    *(f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 26, 27, 28, 31, 34, 35, 39)),
)
# What importing SGLang's kernels needs, in the versions that it pins. Its other requirements are
# for serving, or for kernels that are not run here; some contradict ours.
SGLANG = (
    *("apache-tvm-ffi==0.1.11", "compressed-tensors==0.20.0", "dill==0.4.1", "distro"),
    *("einops", "fastapi==0.121.3", "gguf==0.19.0", "interegular", "loguru==0.7.3"),
    *("msgspec==0.22.0", "openai==2.6.1", "orjson==3.13.0", "partial-json-parser"),
    *("pybase64==1.5.1", "pydantic==2.12.5", "pydantic-core==2.41.5", "pyzmq==27.3.0"),
    *("sentencepiece", "setproctitle==1.3.8", "sglang==0.5.17", "sglang-kernel==0.4.5"),
    *("starlette==0.50.0", "tokenizers==0.22.2", "transformers==5.12.1", "uvicorn==0.54.0"),
    "xgrammar",
)
LEFT_OUT = (
    *("sglang/multimodal_gen/*", "sglang/test/*", "sglang/srt/*/_core*.so"),
    *("sgl_kernel/sm100/*", "*/flash_ops*", "*/flashmla_ops*", "*/infllm_ops*", "*.data/*"),
    "IPython/*",
)
STAND_INS = {
    "IPython/__init__.py": "",
    "IPython/display.py": "HTML = display = clear_output = print\n",
}


def name_of(requirement: str) -> str:
    """Say which package a line of requirements names, as indexes spell it."""
    found = re.match(r"[\w.-]+", requirement.strip())
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""


def own_requirements(without: Collection[str]) -> list[str]:
    """List what the project itself requires."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = parser["options"]["install_requires"].split("\n")[1:]
    return [one for one in lines if name_of(one) not in without]


def resolved(requirements: Iterable[str], python: str, there: Collection[str]) -> list[str]:
    """List the packages that have to be brought, with all that they require in turn."""
    words = ["install", "--dry-run", "--ignore-installed", "--report", "-", *_for(python)]
    words += ["--target", "nowhere", *requirements]
    said = json.loads(_pip(*words))
    found = {
        name_of(one["metadata"]["name"]): one["metadata"]["version"] for one in said["install"]
    }
    pinned = {name_of(one) for one in SGLANG}
    return [f"{name}=={v}" for name, v in sorted(found.items()) if name not in pinned | {*there}]


def _for(python: str) -> list[str]:
    words = ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}"]
    return words + [f"--platform={one}" for one in PLATFORMS]


def _pip(*words: str) -> str:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr.strip())
    return done.stdout


def unpack(wheels: Iterable[Path], site: Path) -> None:
    """Unpack all that is needed of the wheels into one folder, with stand-ins for the rest."""
    for wheel in wheels:
        with ZipFile(wheel) as archive:
            archive.extractall(site, [one for one in archive.namelist() if is_needed(one)])
    for name, text in STAND_INS.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def is_needed(name: str) -> bool:
    """Tell whether a file of a wheel is unpacked."""
    return not any(fnmatch.fnmatch(name, pattern) for pattern in LEFT_OUT)


def main() -> None:
    """Resolve, download and pack."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("archive", type=Path)
    parser.add_argument("--has", type=Path, help="a file of the packages that are there")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        help="leave this package out, and what only it requires",
    )
    parser.add_argument("--python", default="3.12", help="the version that is there")
    asked = parser.parse_args()
    without = {name_of(one) for one in asked.without}
    there = set(without)
    if asked.has:
        there |= {name_of(one) for one in asked.has.read_text(encoding="utf-8").splitlines()}
    wanted = resolved(own_requirements(without), asked.python, there)
    wanted += [one for one in SGLANG if "==" in one or name_of(one) not in there]
    print(*wanted, sep="\n", flush=True)
    with TemporaryDirectory() as folder:
        wheels, site = Path(folder, "wheels"), Path(folder, "site")
        _pip("download", "--no-deps", "--dest", str(wheels), *_for(asked.python), *wanted)
        unpack(sorted(wheels.glob("*.whl")), site)
        with tarfile.open(asked.archive, "w:xz") as archive:
            archive.add(site, ".")
    print(f"{asked.archive}: {asked.archive.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
