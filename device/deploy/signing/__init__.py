"""Signed releases, the host's side: keys, the record that is signed, who may sign on a device. See docs/security.md."""
