"""AirSim and its descendants over their RPC, and a server that stands in for them in tests."""
