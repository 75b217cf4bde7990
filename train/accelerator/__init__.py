"""The updates of the algorithms with gradients derived by hand, in numpy, for small multilayer perceptrons.

A task such as CartPole is learned in a second, less than TensorFlow takes to load and to compile. Each update here
takes and returns what the compiled one of ``train/algorithms/ppo.py`` … does; ``table.py`` chooses.
"""
