"""Processes, time, devices, connections and events of one machine.

Nothing here knows of training: no layout, no model, no rank other than by its number; the records of events name
these and no more.
"""
