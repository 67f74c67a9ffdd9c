"""What becomes of a training under each framework when something breaks: `python -m benchmarks.frameworks`.

Cells are real `chaos run`s of the scripts in `benchmarks.framework_scripts`; their figures are checked against what the
scripts wrote down themselves. Nothing of a framework is imported here.
"""
