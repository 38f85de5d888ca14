"""A model of the cluster around the guard, searched by hypothesis for two executions at once.

`python -m tests.model` runs a longer search than the tests do.
"""
