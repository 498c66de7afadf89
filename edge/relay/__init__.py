"""A relay: for the devices of its site it is a coordinator, for the federation's coordinator it is one device."""
