"""The ``apportion`` command: ``agent``, ``relay``, ``csr``, ``enrol``, ``predict`` and
``release`` run here.

Others are in ``coordinator.cli``, which devices lack.
Of its verbs ``verify``, ``profile`` and ``bench device`` have a form of their own for devices."""

from __future__ import annotations

import sys
from importlib import import_module

from edge.contracts.release import RELEASE


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and give its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    if words == ["--version"]:
        print(f"apportion {RELEASE}")
        return 0
    if words[:1] == ["agent"]:
        from edge.system.startup_pages import import_in_stages, supervisor_modules

        import_in_stages(*supervisor_modules(words[1:]))
        from edge.commands.agent import agent_command

        return agent_command(words[1:])
    if words[:1] == ["relay"]:
        from edge.relay.command_line import relay_command

        return relay_command(words[1:])
    if words[:1] == ["csr"]:
        from edge.commands.csr import csr_command

        return csr_command(words[1:])
    if words[:1] == ["enrol"]:
        from edge.commands.enrol import enrol_command

        return enrol_command(words[1:])
    if words[:1] == ["predict"]:
        from edge.commands.predict import predict_command

        return predict_command(words[1:])
    if words[:1] == ["release"]:
        from edge.commands.release import release_command

        return release_command(words[1:])
    try:
        commands = import_module("coordinator.cli")
    except ImportError as error:
        if words[:1] == ["verify"]:
            from edge.commands.verify import verify_command

            return verify_command(words[1:])
        if words[:1] == ["profile"]:
            from edge.commands.profile import profile_command

            return profile_command(words[1:])
        if words[:2] == ["bench", "device"]:
            from edge.commands.bench_device import bench_device_command

            return bench_device_command(words[2:])
        print(
            f"apportion: this installation has the device agent only ({error}); "
            "pip install 'apportion[coordinator]' for the other commands, or see: apportion agent --help",
            file=sys.stderr,
        )
        return 2
    return int(commands.main(words))


if __name__ == "__main__":
    sys.exit(main())
