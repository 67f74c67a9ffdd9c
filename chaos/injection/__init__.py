"""The injector: holds the target at its trigger, applies, verifies, releases and undoes.

It knows faults by their interface only, never by kind.
"""
