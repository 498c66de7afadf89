"""The release of this project, in one place: the version of the wheel, of the command and of an agent in its hello.

And the Pythons that it runs on, a device's and a coordinator's; ``pyproject.toml`` says the same to pip.
"""

from __future__ import annotations

RELEASE = "0.2.0.dev0"

PYTHONS = ((3, 11), (3, 12), (3, 13), (3, 14))
"""Oldest first. Each has wheels of all that a device needs, for x86-64 and aarch64."""

PYTHON_RANGE = "{}.{} to {}.{}".format(*PYTHONS[0], *PYTHONS[-1])
"""The same for messages."""
