"""The networks: their weights, their forward passes, their optimisers, and which one is trained."""
