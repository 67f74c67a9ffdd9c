"""What several subcommands share: options, what is printed, what an error leaves behind.

No subcommand lives here, and nothing of this is of use without a command line.
"""
