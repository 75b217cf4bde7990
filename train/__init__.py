"""Training: an environment in, a bundle out. ``quarl train --help`` is the way in.

    algorithms/     one algorithm a file, read from top to bottom; common/ has what two or more share
    networks/       weights, forward passes, steps along gradients
    quantization/   networks on coarser grids while they are trained: integers' levels, 16-bit floats, narrow weights
    suites/         tasks and the benchmark suites that they come from
    runs/           one run: its settings file, clock, logs, checkpoints, best policy and bundle
    accelerator/    the updates by hand that a run is given instead of TensorFlow's, chosen in one table
    actorq/         actors and a learner in processes of their own, on one machine or many
    settings/       the settings that were tuned, as data

TensorFlow is loaded at its first use (``lazily.py``), so that asking for help costs nothing.
"""
