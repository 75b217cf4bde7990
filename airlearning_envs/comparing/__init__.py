"""The embedded simulator beside recorded flights; ``quarl compare-flight``."""
