"""Policies of other programs, read into bundles: ``quarl import``."""
