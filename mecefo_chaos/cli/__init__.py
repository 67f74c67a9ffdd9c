"""The command line: `main` has the group and its entry, and each other file here is a subcommand.

Each parses options and prints; other packages compute. Nothing imports this but what starts a command.
"""
