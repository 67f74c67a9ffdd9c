"""What several subcommands share: options, output, and the traces of errors.

There are no subcommands here, and nothing that is useful without a command line.
"""
