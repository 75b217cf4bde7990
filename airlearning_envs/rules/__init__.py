"""The rules of the task: what can be commanded, what is seen, what ends a flight and what it is worth."""
