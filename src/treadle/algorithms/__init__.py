"""Floor 2: credit rules, aggregations and losses. Pure functions of a forest; no I/O, no packing, no tokens' text."""
