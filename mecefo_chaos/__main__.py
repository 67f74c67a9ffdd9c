"""Entry point of the installed `chaos` and of `python -m mecefo_chaos`."""

import sys
from pathlib import Path


def main() -> None:
    """Run the command that lies beside this package, whatever `chaos` is found first on Python's path."""
    root = str(Path(__file__).resolve().parents[1])
    sys.path.insert(0, root)
    try:
        from chaos.__main__ import main as run
    finally:
        sys.path.remove(root)
    run()


if __name__ == "__main__":
    main()
