"""What a rank holds, unit by unit: parameters, gradients, optimizer state, and how they move between ranks.

Nothing here decides what moves; that is in the layout and the coordinator's messages. Nor is anything approximated.
"""
