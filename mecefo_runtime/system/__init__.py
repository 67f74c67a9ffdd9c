"""Processes, time, devices, connections and events of one machine.

Nothing here knows of training: no layout, no model, ranks are plain numbers. The records of all kinds of events lie
here, those of chaos and harness too, since a log is read as a whole; they are values and name no class.
"""
