"""Who acts: what entries call a device, a coordinator's process and a person at a command line."""

from __future__ import annotations

import os
import pwd
import socket

_COMMAND = ["apportion"]


def device(name: str) -> str:
    """A device, or the relay that stands for a site."""
    return f"device:{name}"


def coordinator(process: str = "") -> str:
    """A coordinator's process, by a name of its own; this one unless another is named."""
    return f"coordinator:{process or f'{socket.gethostname()}-{os.getpid()}'}"


def operator() -> str:
    """Whoever gave the command that this process carries out."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name  # not what $LOGNAME says: anybody may set that
    except KeyError:  # an account without a name
        user = str(os.getuid())
    return f"operator:{user}@{socket.gethostname()}, {_COMMAND[-1]}"


def set_command(verb: str) -> None:
    """What :func:`operator` says was given: the verb, without its arguments, which may name what is secret."""
    _COMMAND[-1] = f"apportion {verb}"
