"""Unstructured pruning on the server: which weights may go, what a kept weight costs in time, and which ones stay."""
