"""The subcommands of `chaos`, one per file.

Each parses options and prints; other packages compute.
"""
