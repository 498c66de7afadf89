"""Brokers of several nodes: the files that each node needs."""
