"""One run from experiment to report: checks, conductor, repairs, restarts.

The only room that starts and stops everything else.
"""
