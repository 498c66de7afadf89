"""Plots as SVG text: axes from sensible bounds, units, gridlines, legends. No script; colours follow the page."""
