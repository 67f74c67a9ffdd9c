"""One run from experiment to report: checks, conductor, repairs, restarts.

The only package that starts and stops everything else.
"""
