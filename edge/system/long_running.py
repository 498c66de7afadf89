"""What commands that run until they are stopped share: logging, signals and exit status. Imports nothing heavy."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Callable
from typing import Protocol

from edge.contracts.errors import ApportionError
from edge.system.exit_status import EXIT_BUG
from edge.system.printable import log_to_stderr, printable_lines


class LongRunning(Protocol):
    """An agent, a relay."""

    def run(self) -> None:
        """Until it is stopped."""

    def stop(self, reason: str) -> None:
        """From a signal handler: has :meth:`run` come back."""


def run_until_stopped(
    parser: argparse.ArgumentParser, make: Callable[[argparse.Namespace], LongRunning], arguments: list[str]
) -> int:
    """Run what ``make`` makes of the arguments until SIGTERM or SIGINT; the exit status as the help says."""
    log_to_stderr(logging.INFO, "%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        chosen = parser.parse_args(arguments)
        logging.getLogger("apportion").setLevel(chosen.log_level.upper())
        made = make(chosen)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda signum, frame: made.stop(signal.Signals(signum).name))
        made.run()
    except SystemExit as finished:  # argparse: 0 after --help, 2 after a mistake
        return int(finished.code or 0)
    except ApportionError as error:
        print(printable_lines(f"{parser.prog}: {error}"), file=sys.stderr)
        if error.hint:
            print(printable_lines(f"  next: {error.hint}"), file=sys.stderr)
        return error.exit_code
    except Exception:
        logging.getLogger("apportion").exception("a bug of ours; please report it with the lines above")
        return EXIT_BUG
    return 0
