"""Mutated bundles and mutated lines: what the project reads from outside is refused by name, or acts as it says."""
