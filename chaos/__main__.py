"""What the installed `chaos` and `python -m chaos` start: the command, of which Ctrl-C shows no traceback.

Not even while the program itself is still being read in, which takes its time on a busy machine.
"""

import sys


def main() -> None:
    """Entry point of the `chaos` command."""
    try:
        from chaos.cli import main as run

        run()
    except KeyboardInterrupt:
        print("chaos: interrupted", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
