"""Bundles on their way out, as folders that others read: ``quarl package``."""
