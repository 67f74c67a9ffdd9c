"""The LLaMA model as units, its data, and the MeCeFO approximations of a block.

One rank alone: nothing here sends or receives.
"""
