"""What is really run: snapshot processes that are killed by chance, whole jobs, and the figures that are kept of both.

`draws` starts nodes without training, `rungs` ordinary runs. `measured.json` came with this version. Nothing is judged
here.
"""
