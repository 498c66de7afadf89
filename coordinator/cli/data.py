"""``apportion data make`` and ``apportion data get``: small data that is here, and public data that is fetched."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.command import verb
from coordinator.cli.waiting import downloading, waiting

EXAMPLE = "Example: apportion data make cifar10 data"

data = typer.Typer(help="Data to run the examples with.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.add_typer(data, name="data", epilog=EXAMPLE)


@data.callback()
def _group() -> None:
    """Data to run the examples with."""


@data.command("make", epilog=EXAMPLE)
@verb("data-make")
def make(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="digits, breast-cancer or wine, dealt to devices; cifar10, mnist-writers or movie-reviews, a stand-in",
        ),
    ],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="where it is written")],
    devices: Annotated[int, typer.Option(min=1, max=10_000, help="folders that real data is dealt to")] = 4,
    examples: Annotated[int, typer.Option(min=100, max=100_000, help="of a stand-in, a fifth of them held out")] = 5000,
    partition: Annotated[str, typer.Option(help="how real data is dealt, as [data] partition: iid, dirichlet")] = "iid",
    alpha: Annotated[float, typer.Option(help="of a dirichlet partition")] = 0.5,
    seed: Annotated[int, typer.Option(min=0, help="of every draw")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Write small data into FOLDER; nothing is fetched."""
    from coordinator.data import made

    with waiting(f"making {name} in {folder}"):
        found = made.make(name, folder, devices=devices, examples=examples, kind=partition, alpha=alpha, seed=seed)
    if not as_json:
        for path in found.files:
            print(path)
        print(f"{found.train} examples to train on, {found.test} held out")
        if found.is_stand_in:
            print(f"a stand-in with the shapes of {name}, not the real data: scores on it say nothing about that")
            print(f"use it: export APPORTION_DATA={folder}")
        else:
            print(f"use it: apportion agent --data {found.files[0].parent} ...")
            print(f'        [evaluation] data = "{found.files[-1].parent}"')
    return {
        "files": [str(path) for path in found.files],
        "train": found.train,
        "test": found.test,
        "stand_in": found.is_stand_in,
    }


GET_EXAMPLE = "Example: apportion data get cifar10 data"


@data.command("get", epilog=GET_EXAMPLE)
@verb("data-get")
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="cifar10, mnist or imdb")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="where it is written")],
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Fetch public data into FOLDER and check its digest; a download that broke off goes on."""
    from coordinator.data import public

    chosen = public.public_data(name)
    print(f"{name}: {chosen.licence}", file=sys.stderr)
    with downloading() as progress:
        written = public.get(chosen, folder, progress)
    if not as_json:
        for path in written:
            print(path)
        print(f"use it: {chosen.use.format(folder=folder)}")
    return {"files": [str(path) for path in written], "licence": chosen.licence}
