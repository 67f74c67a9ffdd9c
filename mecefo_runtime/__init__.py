"""The training runtime: trains a model over many ranks and goes on when some of them are lost."""
