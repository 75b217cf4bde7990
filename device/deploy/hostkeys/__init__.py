"""Who a device is: host keys that a person accepted, and certificates of an authority that a person trusts."""
