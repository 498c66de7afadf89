"""Rewrites of a traced program into the operators of a device's native library; one file per kind of layer."""
