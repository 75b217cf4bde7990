"""The simulator in numpy: AirSim's SimpleFlight for a batch of drones. Ships to the device."""
