"""The executable: finds the verb, runs it, and turns every outcome into an exit status and, with ``--json``, one line.

Exit status: 0 ok, 1 the job failed, 2 bad arguments or configuration, 3 connection or authorisation, 4 timeout,
5 a bug of ours, 75 stopped on request and resumable, 130 interrupted, 143 terminated. Results go to stdout, everything
else to stderr.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import json
import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from coordinator.audit_log import actors
from coordinator.cli.overview import show_overview
from coordinator.cli.verbs import VERBS
from edge.contracts.errors import ApportionError, ConfigError
from edge.contracts.release import RELEASE
from edge.system.printable import escape_last_resort, printable_lines

COMPLETE_VARIABLE = "_APPORTION_COMPLETE"
"""Set by the shell while it completes a command line."""

_FAILED, _BAD_ARGUMENTS, _BUG, _SIGNALLED = 1, 2, 5, 128

_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
"""Base of everything wrong with an argument. Newer typers carry their own click: only this way names it in all."""

_NOT_OURS = {
    errno.EACCES,
    errno.EPERM,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
}
"""Failures of the operating system that no code of ours can mend: rights, a full disk, a file where a folder goes."""


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM arrived; unwinds everything, so that children are ended and files closed."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = _SIGNALLED + number


def main(argv: list[str]) -> int:
    """Run ``apportion ARGV``; the exit status."""
    wanted = next((word for word in (*argv, *_words_to_complete()) if word in VERBS), None)
    as_json = "--json" in argv
    escape_last_resort()
    if not argv and COMPLETE_VARIABLE not in os.environ:
        show_overview(sys.stderr)
        return _BAD_ARGUMENTS
    with _signals():
        try:
            status = typer.main.get_command(_app(wanted)).main(args=argv, prog_name="apportion", standalone_mode=False)
            sys.stdout.flush()
        except _USAGE_ERROR as error:
            error.show(file=sys.stderr)
            if as_json:
                _print_failure(wanted or "apportion", "bad-arguments", error.format_message(), "see --help")
            return _BAD_ARGUMENTS
        except (typer.Abort, KeyboardInterrupt) as error:
            return error.exit_code if isinstance(error, Interrupted) else _SIGNALLED + signal.SIGINT
        except BrokenPipeError:
            # Whoever read our output has gone (a pager, head); what is left in the buffer has nowhere to go either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _FAILED
    return int(status or 0)


def _app(wanted: str | None) -> typer.Typer:
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        help="Train a model that is too big for every device, on the devices.",
        epilog="Example: apportion demo --json",
    )

    @app.callback()
    def options(
        version: Annotated[
            bool, typer.Option("--version", is_eager=True, callback=_show_release, help="the release")
        ] = False,
    ) -> None:
        """Options without a verb; their callbacks do the work."""

    # Only the module of the verb that is asked for is imported; others are names with a line, for completion.
    for name, (module, line) in VERBS.items():
        if name != wanted or not module:
            app.command(name, help=line)(_elsewhere)
        else:
            importlib.import_module(module).register(app)
    return app


def _elsewhere() -> None:
    """A verb that is not the one asked for, or a device's, whose entry never comes here."""


def _words_to_complete() -> list[str]:
    """The command line that a shell wants completed; empty otherwise."""
    if COMPLETE_VARIABLE not in os.environ:
        return []
    return (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or "").split()[1:]


def _show_release(is_asked: bool) -> None:
    if is_asked:
        print(f"apportion {RELEASE}")
        raise typer.Exit


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGINT unwind the stack while the context is open; as before in threads, which get no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        raise Interrupted(number)

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def verb(name: str) -> Callable[[Callable[..., dict[str, Any]]], Callable[..., None]]:
    """Decorator of a verb's function: it returns the values of its result, or raises.

    A result with ``ok: false`` is a job that ran and failed; it holds an ``error`` as failures do, and ends with its
    ``exit_code`` (left out of the line), 1 if there is none. The function takes ``as_json``; what it or a model of the
    user's prints is then kept off stdout.
    """

    def wrap(function: Callable[..., dict[str, Any]]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> None:
            as_json = bool(kwargs.get("as_json"))
            actors.set_command(name)

            def fail(status: int, code: str, message: str, hint: str = "") -> typer.Exit:
                if as_json:
                    _print_failure(name, code, message, hint)
                return typer.Exit(status)

            try:
                with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
                    values = function(*args, **kwargs)
            except ApportionError as error:
                print(printable_lines(f"error [{error.code}]: {error}"), file=sys.stderr)
                if error.hint:
                    print(printable_lines(f"hint: {error.hint}"), file=sys.stderr)
                raise fail(error.exit_code, error.code, str(error), error.hint) from None
            except KeyboardInterrupt as error:
                print("interrupted", file=sys.stderr)
                status = error.exit_code if isinstance(error, Interrupted) else _SIGNALLED + signal.SIGINT
                raise fail(status, "interrupted", f"stopped by {error}") from None
            except BrokenPipeError:
                raise
            except Exception as error:
                if isinstance(error, OSError) and error.errno in _NOT_OURS:
                    print(printable_lines(f"error [system]: {error}"), file=sys.stderr)
                    raise fail(_FAILED, "system", str(error), "see the rights and the space of that place") from None
                print(printable_lines(traceback.format_exc()), end="", file=sys.stderr)
                print(f"apportion {name}: this is a bug; please report it with the lines above", file=sys.stderr)
                raise fail(_BUG, "bug", f"{type(error).__name__}: {error}", "report it with the log") from None
            status = values.pop("exit_code", 0 if values.get("ok", True) else _FAILED)
            if as_json:
                _print_line({"schema": f"apportion.{name}/1", "ok": True, **values})
            raise typer.Exit(status)

        return run

    return wrap


def _print_failure(name: str, code: str, message: str, hint: str) -> None:
    failure = {"code": code, "message": message, "hint": hint}
    _print_line({"schema": f"apportion.{name}/1", "ok": False, "error": failure})


def _print_line(values: dict[str, Any]) -> None:
    print(json.dumps(_finite(values), allow_nan=False))


def _finite(value: Any) -> Any:
    """``value`` with null where JSON has no number: a loss may diverge."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parse_problem(path: str, text: str) -> ConfigError:
    """One problem with an argument, as the configuration's problems are shown."""
    return ConfigError([f"{path}: {text}"])
