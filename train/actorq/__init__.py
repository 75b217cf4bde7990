"""ActorQ: training with quantized actors on one machine or many, through Ray."""

METHODS = ("d4pg", "dqn")
"""The algorithms that are distributed."""
