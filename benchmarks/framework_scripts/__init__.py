"""Training scripts as their users write them, one per framework; `benchmarks.frameworks` breaks them.

Each trains the same small language model for 60 steps, saves every 10 and continues from its newest checkpoint when it
is started again. Each is called with the folder of its checkpoints. Nothing of `chaos` is in them.
"""
