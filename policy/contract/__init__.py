"""The parts of a policy's contract, policy.json: enums, observation, normaliser, network and heads."""
