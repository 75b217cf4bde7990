"""Bundles on their way out, as folders that others read: ``python -m convert.package``."""
