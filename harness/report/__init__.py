"""Reports: what a summary and its events look like on a terminal, in a browser and to a test runner.

Words and pictures only: every figure comes from the summary or from `analysis`.
"""
