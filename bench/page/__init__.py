"""``python -m bench.page``: everything that was measured as one HTML page."""
