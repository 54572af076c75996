"""The device side: what executes the steps of a worker.

A runner has `num_blocks`, `max_model_len`, `execute(step)` and `reset()`; `runner` has the one with a
model (and torch), `hash` the oracle without. Only the worker's shell imports this package.
"""
