"""One training run: its settings file, clock, logs, checkpoints, best policy, and the bundle that it writes."""
