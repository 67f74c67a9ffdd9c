"""Entry point of the installed `chaos` and of `python -m chaos`; Ctrl-C never shows a traceback.

This also holds while modules are still being imported, which takes a while on a busy machine.
"""

import sys


def main() -> None:
    """Entry point of the `chaos` command."""
    try:
        from chaos.host.python_module import import_own_packages

        # Before anything else: of our names, other packages may come earlier on the path.
        import_own_packages()
        from chaos.cli import main as run

        run()
    except KeyboardInterrupt:
        print("chaos: interrupted", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
