"""What a coordinator says as JSON lines, for whoever collects logs: one object per line, the same keys in each."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any


def json_line(event: str, message: str = "", **values: Any) -> str:
    """``{"event": ..., "message": ..., "time": ..., "values": {...}}``, ASCII, without a line's end.

    Args:
        event: ``said``: ``message`` is for people; else an event of ``metrics.jsonl``, with its values.
    """
    line: dict[str, Any] = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event}
    if message:
        line["message"] = message
    if values:
        line["values"] = values
    return json.dumps(line, sort_keys=True)
