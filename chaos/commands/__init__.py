"""The subcommands of `chaos` that are an idea of their own, one a file."""
