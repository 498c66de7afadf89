"""The end of the log of an agent that the run started on this machine."""

from __future__ import annotations

from pathlib import Path

LINES, BYTES = 200, 64_000


def last_lines(run_dir: Path, device: str) -> tuple[str, ...]:
    """At most :data:`LINES` lines; none where the device has no log here."""
    devices = run_dir / "devices"
    path = devices / device / "agent.log"
    # A device's name comes from the address bar: it may name no folder but its own.
    if path.parent.parent != devices or path.resolve() != path.absolute().resolve(strict=False) or ".." in device:
        return ()
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ()
    lines = text.splitlines()
    return tuple((lines[1:] if size > BYTES else lines)[-LINES:])
