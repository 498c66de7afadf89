"""``apportion join WHERE``: a further coordinator for a run whose ledger is on a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.command import parse_problem, verb
from coordinator.cli.own_code import ENV_HELP, FOREIGN_HELP, KEYS_HELP, check_foreign
from coordinator.cli.own_runs import is_own

if TYPE_CHECKING:
    from coordinator.config.run_config import RunConfig

EXAMPLE = (
    "Example: apportion join postgresql://apportion@db.example/apportion --federation digits --run-dir runs/second"
)
_ADDRESS = "postgresql://"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("join", epilog=EXAMPLE)(join)


@verb("join")
def join(
    where: Annotated[
        str,
        typer.Argument(metavar="WHERE", help="postgresql:// address of the ledger, the run file, or a run's directory"),
    ],
    federation: Annotated[str, typer.Option(help="name of the run; needed with an address")] = "",
    run_dir: Annotated[
        Path | None, typer.Option(help="where this process leaves its files; runs/<name>-joined-<time> if unset")
    ] = None,
    allow_code: Annotated[bool, typer.Option("--allow-code", help=FOREIGN_HELP)] = False,
    allow_keys: Annotated[bool, typer.Option("--allow-keys", help=KEYS_HELP)] = False,
    allow_env: Annotated[list[str] | None, typer.Option(metavar="NAME", help=ENV_HELP)] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress on stderr")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Serve shards of a run beside its coordinator, or wait, and go on with it when that one dies; ends with the run.

    The password of the ledger's account is read from PGPASSWORD or ~/.pgpass.
    """
    from coordinator.cli.assembly import join_run
    from coordinator.cli.open_run import RunOptions
    from coordinator.cli.run import default_run_dir, resumable, show
    from coordinator.ledger.ledger import Ledger
    from coordinator.run_file.loading import load_config_text

    place, name = _place(where, federation)
    with Ledger.open(place, federation=name) as ledger:
        run = ledger.federation()
    config = load_config_text(run.config)
    if not is_own(run):
        check_foreign(config, where, allow_code=allow_code, allow_keys=allow_keys, allow_env=allow_env or ())
    if run_dir is None:
        begun = default_run_dir(config)
        run_dir = begun.with_name(begun.name.replace(name, f"{name}-joined", 1))
    with resumable(run_dir):
        summary = join_run(run.config, place, run_dir, RunOptions(local_devices=0, quiet=quiet))
    if summary:
        show(summary, quiet=quiet, as_json=as_json)
    elif not as_json:
        print(f"{name} is finished; another coordinator led it at the end and has the results")
    return {"federation": name, "led_last": bool(summary), "run_dir": str(run_dir), **summary}


def _place(where: str, federation: str) -> tuple[str, str]:
    """The ledger's address and the run's name.

    Raises:
        ConfigError: they cannot be known, or a password is shown to everyone who lists processes.
    """
    if where.startswith(_ADDRESS):
        from coordinator.config.store import has_password
        from coordinator.ledger.connections import read_address

        if not federation:
            raise parse_problem("--federation", "the address of a ledger goes with the name of the run; give both")
        read_address(where)
        if has_password(where):
            raise parse_problem("WHERE", "leave the password out of the address; set PGPASSWORD or write ~/.pgpass")
        return where, federation
    config = _written(Path(where))
    if not config.store.ledger:
        raise parse_problem("WHERE", f"{where}: $.store.ledger is no server; only one coordinator can run it")
    if federation not in ("", config.federation.name):
        raise parse_problem("--federation", f"{where} is of '{config.federation.name}', not of '{federation}'")
    return config.store.ledger, config.federation.name


def _written(where: Path) -> RunConfig:
    from coordinator.run_file.loading import load_config

    return load_config(where / "config.toml" if where.is_dir() else where)
