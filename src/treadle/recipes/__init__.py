"""Floor 6: whole runs. A `Recipe` is the typed config of one; `compose` builds it, `Run` plays it."""
