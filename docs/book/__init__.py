"""Makes the book of the pages below docs/: the parts that are written from the code, and the checks of its pages."""
