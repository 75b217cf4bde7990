"""``python -m bench.report``: everything that was measured as one HTML page."""
