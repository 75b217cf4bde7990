"""Tables and pictures of what devices reported and of where policies come from; bench/table.py shows them."""
