"""Mutated bundles, lines and fleet.toml files: what is read from outside is refused by name, or acts as it says."""
