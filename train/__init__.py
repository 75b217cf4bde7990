"""Training: an environment in, a bundle out. One file per algorithm; ``python -m train --help`` is the way in.

TensorFlow is imported by the algorithm files (``ppo.py``, ``dqn.py``, ``distill.py``) only, and those only when
training really begins, so that asking for help costs nothing.
"""

from policy import project_python

project_python.begin("train", "train.evaluate", "train.actorq")
