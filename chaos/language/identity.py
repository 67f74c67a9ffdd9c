"""The identity of an experiment as plain values, also of one that was read from a log."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def hash_of(values: Mapping[str, Any]) -> str:
    """16 hexadecimal digits. Stored logs are checked by it: made in another way, it needs another form."""
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
