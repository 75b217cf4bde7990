"""The embedded simulator as a vehicle that speaks MAVLink, and how policies fly it."""
