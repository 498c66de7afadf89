"""What numbers and texts that a device says may be: a message with others is refused where it is read.

The coordinator multiplies, sums, rounds and keeps them, so nothing may be infinite, not a number, or larger than any
device has. Limits are far above what is real; who sets up a federation of larger things raises them here.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

MOST_BYTES = 1 << 44
MOST_EXAMPLES = 1 << 40
"""Of one device or site; sums over the largest cohort are exact in float64."""
MOST_PROCESSORS = 1 << 16
MOST_COUNT = 1 << 53
"""Counts up to here fit a float64 and a database's integers."""

Size = Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES)]
SignedSize = Annotated[int, msgspec.Meta(ge=-MOST_BYTES, le=MOST_BYTES)]
Examples = Annotated[int, msgspec.Meta(ge=0, le=MOST_EXAMPLES)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_COUNT)]
Processors = Annotated[int, msgspec.Meta(ge=0, le=MOST_PROCESSORS)]
"""Processors or threads."""
Coefficient = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
Amount = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]
"""Seconds, milliseconds, megahertz, bytes per second."""
Degrees = Annotated[float, msgspec.Meta(ge=-1e4, le=1e4)]
Result = Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)]
"""A loss or a metric: what float32 can reach and a float64 sum over every example of a cohort can hold."""
Name = Annotated[str, msgspec.Meta(max_length=256)]
Text = Annotated[str, msgspec.Meta(max_length=8192)]
AFew = msgspec.Meta(max_length=64)
"""For containers with one entry a runtime, ability, metric or kind of processor."""
