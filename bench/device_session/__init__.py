"""A device made ready, served and questioned, its answers as reports, and what the host measures beside it."""
