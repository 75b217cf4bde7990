"""Experiments, one room a question: ``python -m bench.study NAME``."""
