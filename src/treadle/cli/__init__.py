"""Floor 7: the front door. Nothing here is needed to use Treadle from Python."""
