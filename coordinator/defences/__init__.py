"""What keeps bad devices from doing harm: screening of updates, standing of devices, and what suits what in a run."""
