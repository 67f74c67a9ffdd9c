"""How processes begin: a rank's main, a node's supervisor, and the start under torchrun, Slurm or Kubernetes.

Nothing below imports this room.
"""
