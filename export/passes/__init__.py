"""Rewrites of a traced program into the operators that ``edge/native`` implements; one file per kind of layer."""
