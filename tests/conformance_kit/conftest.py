"""The command in this process, as the command line's own tests have it."""

from tests.cli.conftest import command

__all__ = ["command"]
