"""Causal language models: their architecture as data, their torch module, and the frozen base in its precision."""
