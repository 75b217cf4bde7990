"""Keras 3 files, read as data: nothing that they name is imported, and no code in them is run."""
