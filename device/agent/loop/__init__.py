"""The robot's loop: a deployed policy as a service that decides at a fixed rate and counts how punctual it is.

``python -m device.agent.loop --bundle PATH --rate 50 --socket PATH``; :mod:`device.agent.loop.client` speaks with it.
"""
