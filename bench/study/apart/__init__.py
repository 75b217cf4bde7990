"""Weights, hidden activations, observation: which of the three has to keep its bits?"""
