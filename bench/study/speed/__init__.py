"""How fast does training run, beside Stable-Baselines3?"""
