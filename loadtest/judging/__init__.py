"""From a measurement and an objective to PASS, FAIL or INVALID. Pure."""
