"""The simulators in which the task is flown, behind one interface (:mod:`airlearning_envs.simulators.simulator`)."""
