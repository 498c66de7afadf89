"""A run on a terminal, as ``apportion top`` shows it: devices, the open round, events; keys ask for things."""
