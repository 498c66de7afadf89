"""All checks of one method, one after the other; and what a user names as a subject of them."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from coordinator.conformance.findings import Failed, Finding, NotApplicable, Outcome
from coordinator.conformance.methods import CHECKS
from coordinator.conformance.methods.subject import Net, Subject, Transformer, seeded
from coordinator.exporting.cut_exporter import dense_module, run_input_spec
from coordinator.methods import method_class
from coordinator.run_file.loading import load_config
from edge.contracts.errors import ApportionError, ConfigError, PlanError

CLAUSE = "docs/own-methods.md"


def check_named(name: str) -> Callable[[Subject], str]:
    """The check ``name`` of :data:`~coordinator.conformance.methods.CHECKS`; it gives what was seen.

    It raises Failed, NotApplicable, or what the method raises.
    """
    file, _, function = name.partition(":")
    found: Callable[[Subject], str] = getattr(importlib.import_module(f"{__package__}.{file}"), function)
    return found


def shown_name(check: str) -> str:
    """How people are told of the check."""
    return check.partition(":")[2].replace("_", "-")


def summary(check: str) -> str:
    """The first line of what the check says about itself."""
    return (check_named(check).__doc__ or "").strip().splitlines()[0]


def check_names(only: Sequence[str]) -> tuple[str, ...]:
    """The checks with one of the names ``only``, all of them where there is none.

    Raises:
        ConfigError: an unknown name.
    """
    known = {shown_name(check): check for check in CHECKS}
    if unknown := sorted({*only} - {*known}):
        raise ConfigError([f"--only {', '.join(unknown)}: no such check of methods; known: {', '.join(known)}"])
    return tuple(check for name, check in known.items() if not only or name in only)


def subject_of(name: str, run_file: Path | None = None) -> Subject:
    """The method ``name`` with a small network, or with the model and the options of a run file.

    Raises:
        ConfigError: no such method, it is not the run file's, or it takes neither a small convolutional network nor a
            small transformer.
    """
    if run_file is not None:
        config = load_config(run_file)
        if config.method.name != name:
            raise ConfigError([f"{run_file}: $.method.name: is '{config.method.name}', and --method is '{name}'"])
        spec = run_input_spec(config)

        def module() -> object:
            dense = dense_module(config)
            dense.input_spec = spec
            return dense

        return Subject(name, method_class(name), module, config.method.options)
    of = method_class(name)
    reasons = []
    for network in (Net, Transformer):
        subject = Subject(name, of, seeded(network))
        try:
            subject.built()
        except (ConfigError, PlanError) as error:
            reasons.append(f"{network.__name__}: {error}")
        else:
            return subject
    raise ConfigError(
        [f"--method {name}: {reason}" for reason in reasons],
        hint="give --config RUN.toml with a model and options that it takes",
    )


def run_checks(subject: Subject, checks: Sequence[str], *, tell: Callable[[Finding], None]) -> list[Finding]:
    """What each of ``checks`` came to; ``tell`` hears of each as it is known."""
    findings = []
    for check in checks:
        started = time.monotonic()
        outcome, seen = _outcome(check, subject)
        finding = Finding(shown_name(check), CLAUSE, outcome, seen, round(time.monotonic() - started, 3))
        findings.append(finding)
        tell(finding)
    return findings


def _outcome(check: str, subject: Subject) -> tuple[Outcome, str]:
    try:
        return "ok", check_named(check)(subject)
    except NotApplicable as error:
        return "not applicable", str(error)
    except Failed as error:
        return "failed", str(error)
    except ApportionError as error:
        return "failed", f"{error.code}: {error}"
    except Exception as error:  # the user's own code
        return "failed", f"{type(error).__name__}: {error}"
