"""Questions asked of a device, and what is measured on the host beside it: the work of bench/'s commands."""
