"""The reference of the command line, from the commands themselves: every verb, its options, help and example."""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer

from coordinator.cli.verbs import VERBS
from edge.commands.verbs import VERBS as DEVICE_VERBS

_OPTION = re.compile(r"(?<![\w`-])(--[a-z][a-z-]*)")


@dataclass(frozen=True)
class Option:
    """One option or argument: how it is written with what it takes, and its help."""

    written: str
    help: str


@dataclass(frozen=True)
class Verb:
    """One command: ``name`` with its group (``device add``), what it does, its options, and its example."""

    name: str
    usage: str
    help: str
    options: tuple[Option, ...]
    example: str


def verbs() -> list[Verb]:
    """Every command, in the order of ``apportion --help``."""
    app = typer.Typer()
    for module in dict.fromkeys(verb.module for verb in VERBS.values() if verb.module):
        importlib.import_module(module).register(app)
    found: dict[str, list[Verb]] = {}
    for verb in _of_group(typer.main.get_command(app), ""):
        found.setdefault(verb.name.partition(" ")[0], []).append(verb)
    return [verb for name in VERBS for verb in found.get(name) or [_device_verb(name)]]


def _of_group(group: Any, prefix: str) -> Iterator[Verb]:
    for name, inner in group.commands.items():
        if getattr(inner, "hidden", False):
            continue
        if hasattr(inner, "commands"):
            yield from _of_group(inner, f"{prefix}{name} ")
        else:
            yield _of_command(f"{prefix}{name}", inner)


def _of_command(name: str, found: Any) -> Verb:
    context = typer.Context(found, info_name=f"apportion {name}")
    records = [parameter.get_help_record(context) for parameter in found.params if parameter.name != "help"]
    options = tuple(Option(written, " ".join(text.split())) for written, text in filter(None, records))
    usage = found.get_usage(context).removeprefix("Usage:").strip()
    return Verb(name, usage, inspect.cleandoc(found.help or ""), options, _without_label(found.epilog))


def _without_label(epilog: str | None) -> str:
    text = inspect.cleandoc(epilog or "").strip()
    return re.sub(r"^[Ee]xamples?:\s*", "", text)


class _Parsed(BaseException):
    """Leads out of the command that made a parser; no handler of failures there takes it for one."""


def _device_verb(name: str) -> Verb:
    parser = _parser_of(name)
    options = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        takes = "" if action.nargs == 0 else _action_metavar(action)
        written = ", ".join(sorted(action.option_strings, key=len)) if action.option_strings else ""
        shown = f"{written} {takes}".strip()
        has_default = action.default not in (None, "", 0, 0.0, False, argparse.SUPPRESS, [], ())
        default = "  [required]" if action.required and written else f"  [default: {action.default}]" * has_default
        options.append(Option(shown, (action.help or "") % {"default": action.default} + default))
    epilog = inspect.cleandoc(parser.epilog or "")
    before, label, example = epilog.partition("example:\n")
    text = f"{parser.description or ''}\n\n{before}" if label else (parser.description or "")
    return Verb(
        name,
        " ".join(parser.format_usage().removeprefix("usage: ").split()),
        text.strip(),
        tuple(options),
        inspect.cleandoc(example if label else _without_label(epilog)),
    )


def _action_metavar(action: argparse.Action) -> str:
    if action.choices:
        return "|".join(str(choice) for choice in action.choices)
    metavar = action.metavar or action.dest.upper()
    return metavar if isinstance(metavar, str) else " ".join(metavar)


def _parser_of(name: str) -> argparse.ArgumentParser:
    """The parser that the verb's command makes: asked to parse, it is caught."""
    caught: list[argparse.ArgumentParser] = []

    def catch(self: argparse.ArgumentParser, *_: Any, **__: Any) -> Any:
        caught.append(self)
        raise _Parsed

    parse, argparse.ArgumentParser.parse_args = argparse.ArgumentParser.parse_args, catch  # type: ignore[method-assign]
    try:
        DEVICE_VERBS[name].run([])
    except _Parsed:
        pass
    finally:
        argparse.ArgumentParser.parse_args = parse  # type: ignore[method-assign]
    return caught[0]


def markdown() -> str:
    """The reference as a page's text: a section for each command."""
    lines: list[str] = []
    for verb in verbs():
        lines += [f"(command-{verb.name.replace(' ', '-')})=", "", f"## `apportion {verb.name}`", ""]
        lines += [_text(verb.help), "", "```text", verb.usage, "```", ""]
        if verb.options:
            lines += ["| option | meaning |", "|---|---|"]
            lines += [f"| `{_cell(option.written)}` | {_meaning(option)} |" for option in verb.options]
            lines.append("")
        if verb.example:
            lines += ["Example:", "", "```text", verb.example, "```", ""]
    return "\n".join(lines)


def _meaning(option: Option) -> str:
    return _cell(_OPTION.sub(r"`\1`", _text(option.help)))


def _text(text: str) -> str:
    return re.sub(r"([<>*_{}\[\]])", r"\\\1", text.replace("``", "`")) if "`" not in text else text.replace("``", "`")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
