"""Studies of policies that learn fewer bits, or weights that take them."""
