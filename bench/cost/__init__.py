"""What a decision of a policy would cost a Raspberry Pi: weights that it reads, and a model of its core."""
