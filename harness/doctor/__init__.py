"""What this machine has of what runs need, what is missing, what that is for, and what to do: `chaos doctor`."""
