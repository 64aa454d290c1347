"""Treadle trains language-model agents by reinforcement learning on what they do."""
