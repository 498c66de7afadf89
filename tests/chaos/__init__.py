"""Seeded runs with faults; ``make chaos``, docs/chaos.md."""
