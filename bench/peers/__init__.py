"""Other programs that execute a network, timed beside the native engine."""
