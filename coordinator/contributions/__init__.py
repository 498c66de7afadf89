"""Which layers and channels are worth training under a budget: what each contributes, what it costs, which to take."""
