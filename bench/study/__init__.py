"""Experiments, one room a question: ``quarl study NAME``."""
