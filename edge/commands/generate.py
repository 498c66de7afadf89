"""``apportion generate DIR``: what a deployed language model writes after a text. Needs no torch."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from edge.commands.outcome import run_verb
from edge.contracts.errors import ConfigError

_MOST = 1_000_000


def generate_command(arguments: list[str]) -> int:
    """Run the verb; the exit status: 0, 1 when the model is bad, 2 for bad arguments."""
    parser = argparse.ArgumentParser(
        prog="apportion generate",
        description="What a deployed language model writes after a text. Nothing is sent anywhere.",
        epilog='Example: apportion generate model --prompt "Once" --count 40 --temperature 0.8 --top-p 0.9 --seed 1',
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="folder that apportion deploy wrote")
    begin = parser.add_mutually_exclusive_group(required=True)
    begin.add_argument("--prompt", help="text to begin with")
    begin.add_argument("--tokens", help="symbols to begin with, numbers with commas between")
    parser.add_argument("--count", type=int, default=64, help="the most symbols to write (64)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 takes the most probable symbol (0)")
    parser.add_argument("--top-p", type=float, default=1.0, help="share of the probability that is drawn from (1)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (0)")
    parser.add_argument("--threads", type=int, default=1, help="threads of the runtime (1)")
    return run_verb(parser, arguments, _generate, _tell)


def _generate(chosen: argparse.Namespace) -> dict[str, Any]:
    from edge.inference.writer import Choice, Writer

    if not 1 <= chosen.threads <= 1024:
        raise ConfigError([f"--threads: {chosen.threads} is outside 1 to 1024"])
    choice = Choice(chosen.temperature, chosen.top_p, chosen.seed)
    given = None if chosen.tokens is None else _numbers(chosen.tokens)
    writer = Writer(chosen.folder, threads=chosen.threads)
    tokenizer = None if given is not None and writer.manifest.tokenizer is None else writer.tokenizer
    if given is None:
        assert tokenizer is not None
        given = [*tokenizer.begins, *tokenizer.encode(chosen.prompt)]
    begun = time.perf_counter()
    written = list(writer.write(given, count=min(chosen.count, _MOST), choice=choice))
    took = time.perf_counter() - begun
    return {
        "prompt": given,
        "tokens": written,
        "text": "" if tokenizer is None else tokenizer.decode([*given, *written]),
        "tokens_per_s": round((len(given) + len(written)) / max(took, 1e-9), 2),
    }


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError([f"--tokens: {text[:80]!r} are no whole numbers with commas between"]) from error


def _tell(values: dict[str, Any]) -> None:
    print(values["text"] or ",".join(map(str, values["tokens"])))
