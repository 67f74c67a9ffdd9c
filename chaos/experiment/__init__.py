"""The experiment: what a user writes in YAML or options, validated into frozen values, and its JSON Schema.

Nothing here starts anything or looks at the machine.
"""
