"""One Pi or two hundred: rollouts to the devices of a fleet.toml, their state, and measurements on all of them."""
