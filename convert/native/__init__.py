"""The native engine's artifact: the weights of a policy, in as many bits as they have."""
