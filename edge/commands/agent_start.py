"""How ``apportion agent`` begins: its help at once, everything else in stages that keep the peak of memory low."""

from __future__ import annotations


def start_agent(arguments: list[str]) -> int:
    """Show the help, or run an agent until it is stopped; the exit status."""
    if not {"-h", "--help"}.isdisjoint(arguments):
        from edge.commands.agent_arguments import agent_parser

        agent_parser().print_help()
        return 0
    from edge.system.startup_pages import import_in_stages, supervisor_modules

    import_in_stages(*supervisor_modules(arguments))
    from edge.commands.agent import agent_command

    return agent_command(arguments)
