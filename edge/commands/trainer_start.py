"""``python -m edge.commands.trainer_start RUNTIME SUPERVISOR``: how a trainer begins, before it imports a library."""

from __future__ import annotations

import sys

from edge.contracts.errors import ApportionError
from edge.runtimes import traits_of
from edge.system.cached_libraries import read_libraries_anew


def start_trainer(arguments: list[str]) -> int:
    """Serve the supervisor until it is gone; ``arguments`` as of :func:`edge.trainer.main`."""
    read_libraries_anew("numpy", traits_of(arguments[0]).module)
    from edge.trainer import main

    return main(arguments)


if __name__ == "__main__":
    try:
        sys.exit(start_trainer(sys.argv[1:]))
    except ApportionError as problem:
        print(f"apportion trainer: {problem}", problem.hint, file=sys.stderr)
        sys.exit(problem.exit_code)
