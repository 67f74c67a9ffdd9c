"""How a supervisor learns that its node will be preempted: by the signal that batch systems send some time before."""

import signal

# As Slurm with --signal=B:USR1@60. SIGTERM would be the other usual one; to our processes it means: end now.
NOTICE = signal.SIGUSR1
