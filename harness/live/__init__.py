"""The live views of a run in progress.

They show the results of `analysis`. Its own figures are the speed of the last few steps and the time left.
"""
