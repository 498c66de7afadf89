"""What keeps bad devices from doing harm: screening of updates, and how reliable devices are."""
