"""The ``apportion`` command. A device's verbs (:mod:`edge.commands.verbs`) run here.

Others are in ``coordinator.cli``, which devices lack.
Of its verbs ``verify``, ``profile`` and ``bench device`` have a form of their own for devices."""

from __future__ import annotations

import sys
from importlib import import_module

from edge.commands.verbs import ALSO_WITHOUT_COORDINATOR, VERBS
from edge.contracts.release import RELEASE


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and give its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    if words == ["--version"]:
        print(f"apportion {RELEASE}")
        return 0
    name = words[0] if words else ""
    if name in VERBS:
        return VERBS[name].run(words[1:])
    try:
        commands = import_module("coordinator.cli.entry")
    except ImportError as error:
        if name in ALSO_WITHOUT_COORDINATOR:
            return ALSO_WITHOUT_COORDINATOR[name].run(words[1:])
        print(
            f"apportion: this installation has the device agent only ({error}); "
            "pip install 'apportion[coordinator]' for the other commands, or see: apportion agent --help",
            file=sys.stderr,
        )
        if name in ("", "--help", "-h"):
            print("verbs of a device:", file=sys.stderr)
            for verb, (_, line) in {**VERBS, **ALSO_WITHOUT_COORDINATOR}.items():
                print(f"  {verb:9} {line}", file=sys.stderr)
        return 2
    return int(commands.main(words))


if __name__ == "__main__":
    sys.exit(main())
