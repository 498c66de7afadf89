"""Byzantine members: parties of a run that speak the real protocol and lie; docs/chaos.md."""
