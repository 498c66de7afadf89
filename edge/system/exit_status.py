"""Exit statuses of commands that run until they are stopped, as their help tells them."""

from __future__ import annotations

EXIT_BUG = 5
EXIT_STATUSES = (
    "exit status: 0 stopped, 1 failed, 2 bad arguments, 3 connection or authorisation, 4 timeout, 5 a bug of ours"
)
