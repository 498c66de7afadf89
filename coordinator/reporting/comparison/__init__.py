"""Runs side by side: what differs in their configuration, their curves, what each cost to reach the same score."""
