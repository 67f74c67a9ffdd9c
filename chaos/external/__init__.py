"""Follows an external training script from inside its process, without changing it.

`site/sitecustomize.py` comes in by PYTHONPATH and waits for torch; the rest is loaded when the script makes its first
optimizer. Nothing here may import what an external environment need not have: the standard library and torch only.
"""
