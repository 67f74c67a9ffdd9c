"""What a rank holds, unit by unit: parameters, gradients, optimizer state, and how they move between ranks.

The layout and the coordinator's messages decide what moves. Nothing here approximates.
"""
