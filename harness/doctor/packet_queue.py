"""Takes packets from a queue, and ends: a process of its own tries whether that can be done here."""

from __future__ import annotations

from harness.network.shaper import Settings, Shaper

if __name__ == "__main__":
    Shaper(1, Settings())
