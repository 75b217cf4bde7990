"""Pickles as data: read without importing, calling or building anything."""
