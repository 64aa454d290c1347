"""Floor 3: packed updates. Blind to the algorithm: it sees per-token numbers on packed segments."""
