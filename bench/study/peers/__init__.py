"""Other programs that train, in environments of their own, and their settings; for bench/study/speed.py."""
