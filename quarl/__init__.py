"""Train a policy, shrink it, put it on a Raspberry Pi over SSH, and measure it there.

Each room is a folder of the repository and a link beside this file: ``quarl.policy``, ``quarl.train``,
``quarl.convert``, ``quarl.device``, ``quarl.bench``, ``quarl.airlearning_envs``. This file goes along to devices: no
imports, in the syntax of Python 3.9.
"""
