"""What the coordinator may learn of one device, and what others may from the model; docs/privacy.md says of whom."""
