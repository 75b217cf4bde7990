"""Devices that have no Python: what the helper does on others is done from here, over SFTP and with POSIX sh."""
