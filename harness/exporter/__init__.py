"""What Prometheus reads of a run: its events folded into figures as they come, and served while it goes on.

Figures come from `analysis`; nothing here computes one of its own.
"""
