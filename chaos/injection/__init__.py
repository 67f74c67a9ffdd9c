"""The injector decides which fault acts, when, on which target and for how long; the executor of a host acts there.

They know faults by their interface only, never by kind.
"""
