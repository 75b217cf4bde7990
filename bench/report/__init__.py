"""What all of bench shares: measurements as documents, intervals, words, tables and figures."""
