"""Advice in messages: what a message tells the user to write is accepted in that very situation.

`table.py` has a row for each option that a message advises; `messages.py` finds those messages in the product.
"""
