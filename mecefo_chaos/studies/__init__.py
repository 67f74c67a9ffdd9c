"""Studies on top of the product: the forecast of a cluster, and the checks of papers' claims.

No run needs them, and nothing outside imports them but the command line and the benchmarks.
"""
