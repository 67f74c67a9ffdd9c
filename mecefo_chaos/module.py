"""Runs a module of ours where only names are known, in a container: `python -P -m mecefo_chaos.module MODULE [ARG]...`.

The image's PYTHONPATH may lead to other packages of our names.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":
    place = Path(__file__).resolve().parents[1] / "chaos" / "host" / "python_module.py"
    runpy.run_path(str(place), run_name="__main__")
