"""What this machine has of what runs need, what is missing, what that is for, and what to do: `chaos doctor`.

Nothing here changes the machine; what backends can say of their own ground lives with them.
"""
