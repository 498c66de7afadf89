"""How to repeat the run: the command, the seed, digests, the run file itself."""

from __future__ import annotations

import re
import shlex

from coordinator.reporting.markup import folded, paragraph, preformatted, table
from coordinator.reporting.subject import Subject

_PASSWORD = re.compile(r"(://[^/@\s\"]*):[^/@\s\"]*@")


def repeat(subject: Subject) -> str:
    """Command, digests and run file; a password in an address is left out."""
    verb = "simulate" if subject.is_simulated else "run"
    file = shlex.quote(f"{subject.folder}/config.toml")
    command = f"apportion {verb} {file} --seed {subject.seed} --run-dir runs/again"
    told = (
        "The same run file, seed, devices and participants give the same bits on processors of the same type, with one "
        "thread. On others the last digits differ."
    )
    rows = list(subject.digests.items())
    digests = table(("SHA-256 of", "digest"), rows, texts=("digest",)) if rows else ""
    text = _PASSWORD.sub(r"\1:...@", subject.config_text)
    return (
        preformatted(command)
        + paragraph(told, kind="what")
        + digests
        + folded("the run file, every key spelled out", preformatted(text))
    )
