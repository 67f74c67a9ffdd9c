"""Entry point of the pytest plugin: `harness.pytest.plugin`, beside whatever `harness` the tested project has."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

# As `chaos.external.site.sitecustomize` has it.
_NAMES = "_mecefo_chaos_names"


def _private_names() -> Any:
    if _NAMES not in sys.modules:
        place = Path(__file__).resolve().parents[1] / "chaos" / "host" / "private_names.py"
        spec = spec_from_file_location(_NAMES, place)
        assert spec is not None and spec.loader is not None
        sys.modules[_NAMES] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[_NAMES])
    return sys.modules[_NAMES]


_plugin = _private_names().load("harness.pytest.plugin")
pytest_addoption = _plugin.pytest_addoption
pytest_configure = _plugin.pytest_configure
pytest_collection_modifyitems = _plugin.pytest_collection_modifyitems
pytest_runtest_call = _plugin.pytest_runtest_call
chaos_run = _plugin.chaos_run
