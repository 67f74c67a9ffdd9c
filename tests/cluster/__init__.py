"""Runs over several hosts, which are namespaces of this machine, under real Slurm or OpenSSH."""
