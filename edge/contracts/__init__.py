"""Everything that crosses a process: frozen structs, their bytes, their errors.

Imports profiles, msgspec and NumPy only.
"""
