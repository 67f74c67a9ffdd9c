"""Entry point of the installed `chaos` and of `python -m mecefo_chaos`; Ctrl-C never shows a traceback.

This also holds while modules are still being imported, which takes a while on a busy machine.
"""

import sys
from pathlib import Path


def main() -> None:
    """Run the command that lies beside this package, whatever `chaos` is found first on Python's path."""
    root = str(Path(__file__).resolve().parents[1])
    try:
        sys.path.insert(0, root)
        try:
            from chaos.host.python_module import import_own_packages

            # Before anything else: of our names, other packages may come earlier on the path.
            import_own_packages()
            from mecefo_chaos.cli.main import main as run
        finally:
            sys.path.remove(root)
        run()
    except KeyboardInterrupt:
        print("chaos: interrupted", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
