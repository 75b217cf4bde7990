"""The benchmark suites as tasks: one module a suite, imported only when one of its tasks is asked for."""
