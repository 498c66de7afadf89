"""``apportion tokenizer train FOLDER``: a tokenizer for a language model, from texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.command import verb
from coordinator.cli.waiting import waiting

EXAMPLE = "Example: apportion tokenizer train texts"

tokenizer = typer.Typer(help="A tokenizer for a language model.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.add_typer(tokenizer, name="tokenizer", epilog=EXAMPLE)


@tokenizer.callback()
def _group() -> None:
    """A tokenizer for a language model."""


@tokenizer.command("train", epilog=EXAMPLE)
@verb("tokenizer-train")
def train(
    source: Annotated[Path, typer.Argument(metavar="FOLDER", help=".txt and .jsonl files, or one such file")],
    vocabulary: Annotated[int, typer.Option(help="the most symbols it may have, 257 or more")] = 8000,
    out: Annotated[Path, typer.Option(help="file to write")] = Path("tokenizer.json"),
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Make a tokenizer of the texts in FOLDER: pairs of bytes, and a symbol that ends a document."""
    from coordinator.language.tokenizer_training import train_tokenizer

    with waiting(f"making {out} of {source}"):
        symbols = train_tokenizer(source, vocabulary, out)
    if not as_json:
        print(f"{out}: {symbols} symbols")
        print(f'use it: in data.toml beside the texts: tokenizer = "{out.name}"')
    return {"out": str(out), "symbols": symbols}
