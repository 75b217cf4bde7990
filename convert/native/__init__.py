"""The native engine's artifact: the integers of a policy, packed in as many bits as they have."""
