"""The algorithms, each file one of them from top to bottom: settings, losses, update, loop."""
