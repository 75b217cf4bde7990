"""The agent as one program without Python: what is built and packed for it on the host."""
