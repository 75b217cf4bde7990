"""What the tables and pictures of the cells and the sweep are made of."""
