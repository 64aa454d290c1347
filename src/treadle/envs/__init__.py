"""Worlds to act in: tasks, environments, tools, sandboxes, and the host that runs one episode by the house's rules."""
