"""The subcommands of `chaos` that are an idea of their own, one a file.

Each parses options and prints; what is computed is computed below.
"""
