"""Federations without devices: data is dealt to simulated ones, torch trains for them. See docs/simulation.md."""
