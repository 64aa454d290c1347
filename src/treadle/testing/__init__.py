"""Floor 6: fakes and conformance kits, shipped for those who write environments, engines and rules."""
