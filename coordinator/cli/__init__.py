"""The ``apportion`` command: one file per verb. This package alone wires exporters, runtimes and the coordinator."""
