"""The arguments of ``apportion agent``. Imports no message and no connection: its help is shown at once."""

from __future__ import annotations

import argparse
from pathlib import Path

from edge.commands.condition_arguments import add_condition_arguments
from edge.home_assistant.options import add_home_arguments
from edge.policy.arguments import add_policy_arguments
from edge.runtimes import DEFAULT, RUNTIMES
from edge.system.exit_status import EXIT_STATUSES
from edge.transport.shown_password import PASSWORD_VARIABLE

_EXAMPLE = f"""\
The password is read from {PASSWORD_VARIABLE}.
{EXIT_STATUSES}

example:
  apportion agent --broker mqtts://pi-07@broker.local:8883 --ca ca.pem --federation demo --device pi-07 \\
      --data ~/images --store ~/.apportion --budget-mb 160
"""


def agent_parser() -> argparse.ArgumentParser:
    """Everything that an agent can be told."""
    parser = argparse.ArgumentParser(
        prog="apportion agent",
        description="Train submodels of a federation on this device's own data.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--broker",
        required=True,
        metavar="URL",
        help="mqtt://[user@]host[:port] or mqtts://...; a cluster's nodes parted by commas",
    )
    add("--user", metavar="NAME", help="user name at the broker when the URL has none; else the device id")
    add("--federation", required=True, metavar="NAME", help="federation to join")
    add("--device", required=True, metavar="ID", help="this device's id")
    add("--data", required=True, metavar="SOURCE", help="npz folder, image folders, CSV or package.module:function")
    add("--store", required=True, type=Path, metavar="DIR", help="folder for artifacts, weights and finished work")
    add(
        "--budget-mb",
        type=float,
        default=0.0,
        metavar="N",
        help="memory (1 MB = 2^20 bytes) for both processes together; 0 = no limit",
    )
    add("--quota-mb", type=float, default=0.0, metavar="N", help="disk for the store; 0 = no limit")
    add("--threads", type=int, default=0, metavar="N", help="most threads a step may use; 0 = as ordered")
    add("--ca", metavar="FILE", help="authority that signed the broker's certificate")
    add("--cert", metavar="FILE", help="this device's certificate")
    add("--key", metavar="FILE", help="its private key")
    add("--trust", type=Path, metavar="FILE", help="follow only orders signed by this key: the authority's signing.pub")
    add(
        "--trust-site",
        type=Path,
        metavar="FILE",
        help="and orders signed by this one: the signing.pub of a site's relay",
    )
    add("--runtime", default=DEFAULT, choices=sorted(RUNTIMES), help="runtime that trains")
    add(
        "--trainer-python",
        metavar="PATH",
        help="interpreter that has the runtime; else that of .venv-NAME, or this one",
    )
    add("--tag", action="append", default=[], metavar="TAG", help="a group it belongs to, for runs that ask for some")
    add("--self-test", action="store_true", help="repeat an artifact's self-test before its first use")
    add("--parent-pid", type=int, default=0, metavar="PID", help="end when this process does")
    add("--once", action="store_true", help="end after the first acknowledged assignment")
    add("--alive-file", type=Path, metavar="FILE", help="touched every 10 s while this agent's loop turns")
    add("--connect-timeout-s", type=float, default=10.0, metavar="S", help="give up the first connection after this")
    add("--log-level", default="info", choices=["debug", "info", "warning", "error"], help="what goes to stderr")
    add_condition_arguments(parser)
    add_policy_arguments(parser)
    add_home_arguments(parser)
    return parser
