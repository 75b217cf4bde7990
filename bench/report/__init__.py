"""Measurements as documents, intervals, words, tables, figures and the page: used by all of bench."""
