"""A randomized soak: short jobs that lose ranks, nodes and coordinators at random moments, and must survive it all."""
