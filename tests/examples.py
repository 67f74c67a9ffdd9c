"""How many examples a property test draws: as many as the profile says (tests/conftest.py), or a part of them."""

from hypothesis import settings

FEW = settings(max_examples=max(1, settings.default.max_examples // 3))
"""For those of which each takes long."""
