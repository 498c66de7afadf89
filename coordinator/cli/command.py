"""The executable: finds the verb, runs it, and turns every outcome into an exit status and, with ``--json``, one line.

Exit status: 0 ok, 1 the job failed, 2 bad arguments or configuration, 3 connection or authorisation, 4 timeout,
5 a bug of ours. Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import click
import typer

from edge.contracts.errors import ApportionError, ConfigError

VERBS: dict[str, str] = {
    "demo": "coordinator.cli.demo",
    "run": "coordinator.cli.run",
    "resume": "coordinator.cli.resume",
    "plan": "coordinator.cli.plan",
    "export": "coordinator.cli.export",
    "verify": "coordinator.cli.verify",
    "bench": "coordinator.cli.bench",
    "costs": "coordinator.cli.costs",
    "doctor": "coordinator.cli.doctor",
}
"""Verb -> module with a ``register(app)``; a new verb is one new file and one line here."""

_INTERRUPTED = 130
_BUG = 5


def main(argv: list[str]) -> int:
    """Run ``apportion ARGV``; the exit status."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        help="Train a model that is too big for every device, on the devices.",
    )
    wanted = next((argument for argument in argv if argument in VERBS), None)
    for verb, module in VERBS.items():
        # Only the verb that runs is imported; help needs them all.
        if wanted in (None, verb):
            importlib.import_module(module).register(app)

    @app.command("agent", help="Run a device's agent (apportion agent --help shows its own options).")
    def agent() -> None:
        """Shown in help only: the agent's entry never comes here."""

    try:
        status = typer.main.get_command(app).main(args=argv, prog_name="apportion", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return 2
    except click.ClickException as error:
        error.show(file=sys.stderr)
        if "--json" in argv:
            _print_failure(wanted or "apportion", "bad-arguments", error.format_message(), "see --help")
        return 2
    except click.Abort:
        return _INTERRUPTED
    return int(status or 0)


def verb(name: str) -> Callable[[Callable[..., dict[str, Any]]], Callable[..., None]]:
    """Decorator of a verb's function: it returns the values of its result, or raises.

    A result with ``ok: false`` is a job that ran and failed (exit 1). The function takes ``as_json``.
    """

    def wrap(function: Callable[..., dict[str, Any]]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> None:
            as_json = bool(kwargs.get("as_json"))
            try:
                values = function(*args, **kwargs)
            except ApportionError as error:
                _explain(error)
                if as_json:
                    _print_failure(name, error.code, str(error), error.hint)
                raise typer.Exit(error.exit_code) from None
            except KeyboardInterrupt:
                print("interrupted", file=sys.stderr)
                raise typer.Exit(_INTERRUPTED) from None
            except Exception as error:
                traceback.print_exc()
                print(f"apportion {name}: this is a bug; please report it with the lines above", file=sys.stderr)
                if as_json:
                    _print_failure(name, "bug", f"{type(error).__name__}: {error}", "report it with the log")
                raise typer.Exit(_BUG) from None
            if as_json:
                print(json.dumps({"schema": f"apportion.{name}/1", "ok": True, **values}))
            raise typer.Exit(0 if values.get("ok", True) else 1)

        return run

    return wrap


def _explain(error: ApportionError) -> None:
    print(f"error [{error.code}]: {error}", file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)


def _print_failure(name: str, code: str, message: str, hint: str) -> None:
    failure = {"code": code, "message": message, "hint": hint}
    print(json.dumps({"schema": f"apportion.{name}/1", "ok": False, "error": failure}))


def parse_problem(path: str, text: str) -> ConfigError:
    """One problem with an argument, as the configuration's problems are shown."""
    return ConfigError([f"{path}: {text}"])
