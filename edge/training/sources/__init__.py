"""Kinds of files that examples lie in, one file per kind, as named arrays whose first dimension is the examples.

Which kind a source is, and what else is checked, is :mod:`edge.training.local_data`'s.
"""
