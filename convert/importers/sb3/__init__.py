"""The reader of Stable-Baselines3 files."""
