"""Questions asked of a device (how fast, how much memory, how often it succeeds), stored, tabulated and drawn."""
