"""Policies of other programs, read into bundles: ``python -m convert.importers``."""
