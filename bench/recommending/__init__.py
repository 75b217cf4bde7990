"""Which precision and runtime, from what was measured: the work of ``bench/recommend.py``."""
