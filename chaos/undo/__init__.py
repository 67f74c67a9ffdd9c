"""Ensures that nothing is left behind: ledger, watchdog, heal, residue audit, registry of runs.

Nothing here injects; it only undoes, from records alone.
"""
