"""Pieces of HTML: escaped text, paragraphs, facts, tables. Everything that comes from a run goes through here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

MB = 2**20


def paragraph(text: str, *, kind: str = "") -> str:
    """A paragraph of plain text; empty text gives none."""
    name = f' class="{kind}"' if kind else ""
    return f"<p{name}>{escape(text)}</p>" if text else ""


def sentences(found: Iterable[str]) -> str:
    """A list with a sentence each; empty without any."""
    lines = [line for line in found if line]
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>" if lines else ""


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Figures in boxes, each with its name above."""
    boxes = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs)
    return f'<dl class="facts">{boxes}</dl>'


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, texts: Iterable[str] = ()) -> str:
    """A table that scrolls by itself where it is too wide.

    Args:
        texts: of ``heads`` beside the first, those whose cells are words and not numbers.
    """
    words = {heads[0], *texts}
    kinds = [' class="text"' if head in words else "" for head in heads]
    head = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in zip(heads, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{k}>{escape(cell)}</td>" for cell, k in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def preformatted(text: str) -> str:
    """Text in the spelling of a file or a command."""
    return f"<pre>{escape(text)}</pre>"


def folded(title: str, body: str) -> str:
    """What is opened by whoever wants it; a printed page has it whole."""
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def listed(names: Sequence[str], limit: int = 8) -> str:
    """``a, b and c``, or the first ``limit`` and how many more there are."""
    if len(names) > limit:
        return f"{', '.join(names[:limit])} and {len(names) - limit} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else ""


def counted(count: int, noun: str, plural: str = "") -> str:
    """``1 device``, ``3 devices``."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def megabytes(count: float) -> str:
    """Memory as ``112.0``, in MB of 2^20 bytes; a dash for 0."""
    return f"{count / MB:.1f}" if count else "-"


def size(count: float) -> str:
    """What is sent as ``12.3 MB``, units of 10^3."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} bytes"


def duration(seconds: float) -> str:
    """``4.2 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
