"""Reports: a summary and its events on a terminal, in a browser and for a test runner.

Text and pictures only: every figure comes from the summary or from `analysis`.
"""
