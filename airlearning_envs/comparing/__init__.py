"""The embedded simulator beside recorded flights; ``python -m airlearning_envs.compare_flight``."""
