"""Builds the book into a folder, as ``make book`` does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from docs.book.pages import ROOT

_OPTIONS = ("--quiet", "--fail-on-warning", "--keep-going", "--fresh-env", "--builder", "html")


def build(folder: Path) -> Path:
    """The site in ``folder``.

    Raises:
        RuntimeError: Sphinx warned of something; the message has its words.
    """
    site = folder / "site"
    command = [sys.executable, "-m", "sphinx", *_OPTIONS, "--doctree-dir", str(folder / "trees"), "docs", str(site)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    return site
