"""Write sessions' variants as a kernel of Hugging Face's `kernels`: one build variant, a card."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256

from tuner.extensions.export.pytorch.package import OperatorFiles, described_as, module_files
from tuner.extensions.export.sources import template
from tuner.model.errors import InputError

# Of PyTorch's builds with CUDA all: the code is Python and cubins.
VARIANT = "build/torch-cuda"
# What a layer is called, by the operator and the choice that it is for.
LAYERS: Mapping[tuple[str, str], str] = {
    ("silu_and_mul", "silu"): "SiluAndMul",
    ("silu_and_mul", "gelu"): "GeluAndMul",
    ("silu_and_mul", "gelu_tanh"): "GeluTanhAndMul",
    ("rmsnorm", "false"): "RMSNorm",
    ("rmsnorm", "true"): "GemmaRMSNorm",
}
# How these are called: a kernel of the user's by the same name makes a layer only if it is too.
PASSED = {"silu_and_mul": "out, input", "rmsnorm": "out, x, w, eps=eps"}
_NAME = re.compile(r"[a-z][a-z0-9_]*[a-z0-9]")


def kernels_files(
    package: str, operators: Sequence[OperatorFiles], folder: str = "."
) -> dict[str, str | bytes]:
    """Return all files of a kernel repository by their names in `folder`.

    Raises `InputError` for a package whose name no kernel of the Hub can have.
    """
    if not _NAME.fullmatch(package) or "__" in package:
        raise InputError(
            f"{package!r} is no name of a kernel of the Hub",
            remedy="begin it with a small letter, and have only these, digits and single _ in it",
        )
    # What several versions may not share: the module and the namespace of its operators.
    digest, layers = sha256(), []
    for one in operators:
        for name, content in sorted(one.files.items()):
            digest.update(name.encode() + b"\0" + _bytes(content))
        kernel = one.described.kernel
        choice = next((each for each in one.choices.values() if (kernel, each) in LAYERS), None)
        if choice and PASSED.get(kernel) == one.described.passed:
            layers.append((LAYERS[kernel, choice], choice, kernel))
    identity = f"_{package}_cuda_{digest.hexdigest()[:7]}"
    values = {
        **described_as(package, operators),
        "identity": identity,
        "folder": folder,
        "layers": layers,
        "variant": VARIANT,
    }
    modules = module_files(package, operators, namespace=identity, layers=bool(layers))
    if layers:
        modules["layers.py"] = template("huggingface/layers.py.j2").render(**values)
    digests = {name: b64encode(sha256(_bytes(modules[name])).digest()) for name in sorted(modules)}
    metadata = {
        "name": package.replace("_", "-"),
        "id": identity,
        "version": 1,
        "license": "other",
        "python-depends": [],
        "backend": {
            "type": "cuda",
            "archs": sorted({capability(one.winners.measured.architecture) for one in operators}),
        },
        "digest": {
            "algorithm": "sha256",
            "files": {name: digest.decode() for name, digest in digests.items()},
        },
    }
    modules["metadata.json"] = json.dumps(metadata, indent=2) + "\n"
    return {
        "README.md": template("huggingface/README.md.j2").render(**values),
        **{f"{VARIANT}/{name}": content for name, content in modules.items()},
    }


def capability(architecture: str) -> str:
    """Write sm_90a as 9.0a."""
    return re.sub(r"sm_(\d+)(\d)", r"\1.\2", architecture)


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
