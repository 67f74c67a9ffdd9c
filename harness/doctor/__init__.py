"""What this machine has of what runs need, what is missing, what that is for, and what to do: `chaos doctor`.

Nothing here changes the machine; what a backend needs, its own room examines.
"""
