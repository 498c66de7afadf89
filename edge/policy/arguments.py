"""The owner's policy as arguments of ``apportion agent`` and ``apportion relay``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.contracts.errors import ConfigError

if TYPE_CHECKING:
    from edge.policy.order_check import PolicyGuard
    from edge.policy.policy_file import SitePolicy


def add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    """``--policy`` and ``--policy-check``."""
    parser.add_argument(
        "--policy", type=Path, metavar="FILE", help="what this agent may be asked (docs/site-policy.md)"
    )
    parser.add_argument(
        "--policy-check", action=_Check, metavar="FILE", help="print what a policy allows, in plain English, and end"
    )


def read_policy(chosen: argparse.Namespace, problems: list[str]) -> SitePolicy | None:
    """The policy of ``chosen``, None without one; adds a line to ``problems`` for everything that is wrong with it."""
    if chosen.policy is None:
        return None
    from edge.policy.policy_file import load_policy

    try:
        policy = load_policy(chosen.policy.expanduser())
    except ConfigError as error:
        problems += error.problems
        return None
    where = f"{chosen.policy}: "
    if policy.federations is not None and chosen.federation not in policy.federations:
        problems.append(
            f"{where}$.federations = {list(policy.federations)}: --federation {chosen.federation} is not one"
        )
    if rule := policy.runtimes.forbids(chosen.runtime):
        problems.append(f"{where}$.runtimes.{rule}: --runtime {chosen.runtime} may not be used")
    if policy.orders.require_signed and chosen.trust is None:
        problems.append(f"{where}$.orders.require-signed = true: give --trust and the coordinator's signing.pub")
    return policy


def guard_of(policy: SitePolicy | None, folder: Path) -> PolicyGuard | None:
    """``policy`` at work, with its files in ``folder``; None without one.

    Raises:
        ConfigError: the day's account there cannot be read.
    """
    if policy is None:
        return None
    from edge.policy.order_check import PolicyGuard

    return PolicyGuard(policy, folder)


class _Check(argparse.Action):
    """Ends the program as ``--help`` does: what else it needs need not be given."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        from edge.policy.plain_words import sentences
        from edge.policy.policy_file import load_policy

        try:
            policy = load_policy(Path(str(values)).expanduser())
        except ConfigError as error:
            parser.exit(error.exit_code, f"{error}\n")
        for sentence in sentences(policy):
            print(sentence)
        parser.exit(0)
