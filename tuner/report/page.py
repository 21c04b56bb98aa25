"""What every page of ours has: one file, no script, no network, written in one step."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path


def content_security_policy(style: str) -> str:
    """Allow the one style sheet that a page holds, and nothing else."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def write_page(html: str, path: Path) -> None:
    """Write a page to `path`, replacing what was there in one step; make its folder.

    Raises `OSError` where it cannot, with what was there before left as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # surrogates, which a compiler's output may hold, have no UTF-8
    content = html.encode("utf-8", errors="replace")
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
