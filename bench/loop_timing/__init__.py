"""How punctual a served policy is: the probe that runs beside it on the device, and the kernel's own figure."""
