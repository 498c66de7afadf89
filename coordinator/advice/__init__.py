"""Which method and level to run, from recorded courses of accuracy and a run's own costs: ``apportion advise``."""
