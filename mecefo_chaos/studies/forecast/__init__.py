"""Forecasts: simulates a job under a cluster's failures, with each strategy.

`forecast` (in `forecast.py`) is the way in; `model` holds what goes in and what comes out. Nothing here runs a job,
measures one or imports torch: what a device takes comes from a table of ratings, layouts come from the real planners.
"""
