"""Training at the coordinator on inputs without labels, for the methods that distil what devices learnt.

``proxy``: the inputs; ``predictions``: what a model says to them; ``ensembles``: what many models say together, as
targets; ``student``: training a model on targets; ``level_models``: where the models of a ladder lie in a state.
"""

from __future__ import annotations
