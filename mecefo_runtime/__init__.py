"""The training runtime: trains a model over many ranks and continues when some of them are lost.

It knows nothing of `chaos` or `harness`: it offers hooks and emits events.
"""
