"""Effects inside a rank, carried out by its agent on its training thread.

Only what is imported when it is first needed.

Nothing here talks to the machine or decides when to act: the injector says when, from outside.
"""
