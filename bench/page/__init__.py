"""``quarl page``: everything that was measured as one HTML page."""
