"""Floor 0: what every room speaks of."""
