"""Floor 1: the forest that every stage annotates, its scans and its store."""
