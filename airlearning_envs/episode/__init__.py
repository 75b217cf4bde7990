"""What an episode draws, each a function of (seed, episode id) alone: layout, wind, command latency."""
