"""The words of an experiment file as values: triggers, targets, quantities, recurrence, and their place in the YAML.

No fault, no job, no process.
"""
