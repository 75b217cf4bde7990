"""What bench/fleet.py is made of: a fleet of its own, what is wrong with it, each command, each device's files.

arena.py     the fleet and the folder in which everything that is started has its home
ill.py       which devices get which fault
typed.py     a command in a process of its own, and what it took
looking.py   what a device's own files say, and whether what was told of it fits
steps.py     the rollouts, in their order
named.py     rollouts to devices of a fleet.toml instead, which nothing is done to otherwise
"""
