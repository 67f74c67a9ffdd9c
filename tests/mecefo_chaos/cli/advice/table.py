"""What messages advise, and that it is accepted: one row for each message and option.

To add one: write the command line that gets the message, the option as the message has it (`write`, or `leave_out`),
and the command line after the advice was followed. A message that is only shown during or after a run is given as
`text`, and the line before is one that is accepted. FILES are there.
"""

from __future__ import annotations

from dataclasses import dataclass

FILES = {
    "train.py": "",
    "train.sh": "torchrun train.py\n",
    "one.yaml": "name: one\nfaults:\n- {kind: kill-node, at: step=30}\n",
    "two.yaml": "name: two\nfaults:\n- {kind: kill-node, at: step=30}\n- {kind: raise, at: step=40}\n",
    "share.yaml": "name: x\njob: {degraded_share_limit: 0.2}\nfaults:\n- {kind: raise, at: step=5}\n",
    "share-out.yaml": "name: x\nfaults:\n- {kind: raise, at: step=5}\n",
    "phase.yaml": "name: x\nfaults:\n- {kind: raise, at: 'step=20,phase=checkpoint'}\n",
    "phase-saved.yaml": (
        "name: x\njob: {checkpoint: {every_steps: 20}}\nfaults:\n- {kind: raise, at: 'step=20,phase=checkpoint'}\n"
    ),
    "sharded.yaml": (
        "name: x\njob: {sharded_optimizer: true, takeover: background}\nfaults:\n- {kind: raise, at: step=5}\n"
    ),
    "sharded-direct.yaml": (
        "name: x\njob: {sharded_optimizer: true, takeover: direct}\nfaults:\n- {kind: raise, at: step=5}\n"
    ),
    "empty.txt": "",
}


@dataclass(frozen=True)
class Advice:
    """One row: the command `line`, and the one `then` in which the advice was followed.

    Either `write` is what to write, as the message has it, or `leave_out` the option that is to go. `text` is the
    message where it is not shown before a run.
    """

    line: str
    then: str
    write: str = ""
    leave_out: str = ""
    text: str = ""

    @property
    def option(self) -> str:
        """The option that the advice is about."""
        return (self.write or self.leave_out).split()[0]


OWN = "torchrun --nproc-per-node 2 train.py"
KILL = "run kill-process --at step=3"
NODE = "run kill-node --at step=30"


def write(option: str, line: str, then: str, text: str = "") -> Advice:
    """A row of an option that is to be written."""
    return Advice(line, then, write=option, text=text)


def leave_out(option: str, line: str, then: str, text: str = "") -> Advice:
    """A row of an option that is to be left out."""
    return Advice(line, then, leave_out=option, text=text)


LINES_THAT_CANNOT_BE_PARSED = [
    write("--help", f"{NODE} --zz", "run --help"),
    write("--at step=30", "run kill-node --step 30", NODE),
    write("--at time=10s", "run kill-node --after 10", "run kill-node --at time=10s"),
    leave_out("--step", "run kill-node --at step=5 --step 30", "run kill-node --at step=5"),
    write("--on rank=1", f"{KILL} --rank 1", f"{KILL} --on rank=1"),
    write("--on node=1", f"{NODE} --host 1", f"{NODE} --on node=1"),
    write("--on rank=1", f"{NODE} --victim 1", f"{NODE} --on rank=1"),
    write("--on link=0-2", "run drop-link --at step=5 --target 1", "run drop-link --at step=5 --on link=0-2"),
    write("--for 10s", "run slow-rank --at step=3 --duration 10s", "run slow-rank --at step=3 --for 10s"),
    write("--for 10steps", "run slow-rank --at step=3 --lifetime 1", "run slow-rank --at step=3 --for 10steps"),
    write("--repair 10steps", f"{KILL} --duration 10s", f"{KILL} --repair 10steps"),
    leave_out("--duration", f"{KILL} --duration 10s -- {OWN}", f"{KILL} -- {OWN}"),
    leave_out("--duration", "run bit-flip --at step=3 --duration 10s", "run bit-flip --at step=3"),
    write("--at step=30", "run --fault kill-node", NODE),
    write("--at step=9", "run raise --at step=3 -p at=step=9", "run raise --at step=9"),
    leave_out("-p", f"{KILL} -p for=3s", KILL),
    leave_out("-p", f"{KILL} -p draw=3", KILL),
    write("--repair 3s", f"{KILL} -p repair=3s", f"{KILL} --repair 3s"),
    leave_out("-p", f"{KILL} -p repair=3s -- {OWN}", f"{KILL} -- {OWN}"),
    write("-p factor=VALUE", "run slow-rank --at step=3 --factor 3", "run slow-rank --at step=3 -p factor=3"),
    write("-p factor=3", "run slow-rank factor=3 --at step=3", "run slow-rank --at step=3 -p factor=3"),
    write("--at step=3", "run kill-node step 3", "run kill-node --at step=3"),
    write("--at time=3s", "run kill-node time 3", "run kill-node --at time=3s"),
    write("--at step=3,phase=data", "run kill-node step=3,phase=data", "run kill-node --at step=3,phase=data"),
    write("--on rank=1", f"{KILL} rank 1", f"{KILL} --on rank=1"),
    write("--on node=1", f"{KILL} node=1", f"{KILL} --on node=1"),
    write("--gate", f"{NODE} --gate recovery_seconds < 60", f"{NODE} --gate 'recovery_seconds < 60'"),
    write("--at step=30", f"run {OWN}", f"run kill-process --at step=30 -- {OWN}"),
    write(
        "-- torchrun train.py",
        "run train.py kill-process --at step=3",
        "run kill-process --at step=3 -- torchrun train.py",
    ),
    write("-- torchrun train.py", f"{KILL} train.py", f"{KILL} -- torchrun train.py"),
    write("-- sh ...", f"{KILL} sh train.sh", f"{KILL} -- sh train.sh"),
    leave_out("train.py", f"{KILL} --json train.py -- {OWN}", f"{KILL} --json -- {OWN}"),
    leave_out("sh", f"{KILL} sh -- {OWN}", f"{KILL} -- {OWN}"),
    write("-- torchrun train.py", f"{KILL} --", f"{KILL} -- torchrun train.py"),
    write("-- torchrun train.py", f"{KILL} --script train.py", f"{KILL} -- torchrun train.py"),
    leave_out("--out", f"{KILL} --out train.py -- {OWN}", f"{KILL} -- {OWN}"),
    write("--out", f"{KILL} --out train.py -- {OWN}", f"{KILL} --out runs -- {OWN}"),
    write("--at", f"{NODE} --name --at step=5", f"{NODE} --name x"),
    write("--and set-nan --at step=30", f"{NODE} --and", f"{NODE} --and set-nan --at step=30"),
    write("--and set-nan --at step=30", f"{NODE} --at step=30", f"{NODE} --and set-nan --at step=30"),
    leave_out("--and", "run --profile llama3:3 --and raise --at step=5", "run --profile llama3:3 raise --at step=5"),
    leave_out("--and", "run none --and raise --at step=5", "run raise --at step=5"),
]
WHICH_FAULT = [
    write("--at step=30", "run", NODE),
    write("--profile", "run --seed 3", "run --seed 3 --profile llama3"),
    write("--at step=30", "init --seed 3", "init kill-process --at step=30"),
    write("--at step=30", "run train.py", "run kill-process --at step=30 -- torchrun train.py"),
    leave_out("--at", "run none --at step=30", "run none"),
    leave_out("--quick", "run --quick one.yaml", "run one.yaml"),
    write("--steps 100", "run --quick one.yaml", "run one.yaml --steps 100"),
    write("--at step=40", "run --quick kill-node --at step=500", "run --quick kill-node --at step=40"),
    leave_out("--quick", "run --quick kill-node --at step=500", "run kill-node --at step=500"),
    leave_out("--quick", f"run --quick -- {OWN}", f"run kill-process --at step=30 -- {OWN}"),
    write("--at step=30", f"run --quick raise -- {OWN}", f"run raise --at step=30 -- {OWN}"),
    write("--force", "init kill-node --at step=5 -o one.yaml", "init kill-node --at step=5 -o one.yaml --force"),
    write("--output", "init kill-node --at step=5 -o one.yaml", "init kill-node --at step=5 --output other.yaml"),
]
TIMES = [
    leave_out("--for", f"{KILL} --for 20steps -- {OWN}", f"{KILL} -- {OWN}"),
    write("--repair 20steps", f"{KILL} --for 20steps", f"{KILL} --repair 20steps"),
    write("--repair", f"{KILL} --for 900steps", f"{KILL} --repair 90steps"),
    leave_out("--for", f"{KILL} --on role=coordinator --for 3s", f"{KILL} --on role=coordinator"),
    leave_out("--for", "run bit-flip --at step=3 --for 3s", "run bit-flip --at step=3"),
    write("--for", "run hang-gil --at step=3 --for 10min", "run hang-gil --at step=3 --for 5min"),
    write(
        "--param at_most",
        "run hang-gil --at step=3 --for 10min",
        "run hang-gil --at step=3 --for 10min --param at_most=10min",
    ),
    leave_out("--repair", f"{KILL} --repair 20steps -- {OWN}", f"{KILL} -- {OWN}"),
    leave_out("--repair", f"{KILL} --on role=coordinator --repair 3s", f"{KILL} --on role=coordinator"),
    leave_out("--repair", f"{NODE} --repair none --strategy reft", f"{NODE} --strategy reft"),
    leave_out("--repair", "run raise --at step=3 --on role=coordinator --repair 3s", "run raise --at step=3"),
    leave_out("--repair", "run bit-flip --at step=3 --repair 3s", "run bit-flip --at step=3"),
    write("--for", "run slow-rank --at step=3 --repair 3s", "run slow-rank --at step=3 --for 3s"),
    write("--repair none", f"{NODE} --steps 50 --repair 40steps", f"{NODE} --steps 50 --repair none"),
    write("--steps", f"{NODE} --steps 50 --repair 40steps", f"{NODE} --steps 70 --repair 40steps"),
    write(
        "--steps",
        f"{NODE} --steps 50 --repair 40steps --strategy reft",
        f"{NODE} --steps 70 --repair 40steps --strategy reft",
    ),
    write("--steps", f"{NODE} --steps 20", f"{NODE} --steps 30"),
    write("--every", f"{NODE} --count 3", f"{NODE} --count 3 --every 50steps"),
    write("--rate", f"{NODE} --within 300steps", f"{NODE} --within 300steps --rate 1/100steps"),
    leave_out("--every", "run raise --every 5s --rate 1/min", "run raise --rate 1/min"),
    leave_out("--rate", "run raise --every 5s --rate 1/min", "run raise --every 5s"),
    write("--at step=...", "run raise --every 50steps --at time=3s", "run raise --every 50steps --at step=30"),
    write("--every", "run raise --every 50steps --at time=3s", "run raise --every 50s --at time=3s"),
    write("--at time=...", "run raise --rate 1/min --at step=3", "run raise --rate 1/min --at time=3s"),
    write("--rate", "run raise --rate 1/min --at step=3", "run raise --rate 1/100steps --at step=3"),
    write("--within", "run raise --every 50steps --within 3min", "run raise --every 50steps --within 300steps"),
    write(
        "--within", "run raise --rate 1/min --at time=20min", "run raise --rate 1/min --at time=20min --within 30min"
    ),
    write("--count", "run raise --every 1ms", "run raise --every 1ms --count 3"),
    write("--within", "run raise --every 1ms", "run raise --every 1ms --within 3ms"),
    write("--steps 560", f"run --profile llama3 -- {OWN}", f"run --profile llama3 --steps 560 -- {OWN}"),
]
CHECKPOINTS = [
    write(
        "--checkpoint-every 20",
        "run raise --at step=20,phase=checkpoint",
        "run raise --at step=20,phase=checkpoint --checkpoint-every 20",
    ),
    write("job.checkpoint.every_steps: 20", "validate phase.yaml", "validate phase-saved.yaml"),
    write(
        "--checkpoint-every 20",
        "run hide-checkpoint --at step=30",
        "run hide-checkpoint --at step=30 --checkpoint-every 20",
    ),
    write(
        "--checkpoint-every 20",
        "run fill-disk --at step=30 --strategy reft",
        "run fill-disk --at step=30 --strategy reft --checkpoint-every 20",
    ),
    write(
        "--every 20steps",
        "run raise --rate 1/50steps --at step=20,phase=checkpoint --checkpoint-every 20",
        "run raise --every 20steps --at step=20,phase=checkpoint --checkpoint-every 20",
    ),
    write(
        "--snapshot-every 1",
        "run raise --at step=20,phase=snapshot",
        "run raise --at step=20,phase=snapshot --snapshot-every 1",
    ),
    write(
        "--every 20steps",
        "run raise --rate 1/50steps --at step=20,phase=snapshot --snapshot-every 20",
        "run raise --every 20steps --at step=20,phase=snapshot --snapshot-every 20",
    ),
    write("--snapshot-every 1", "run kill-smp --at step=20", "run kill-smp --at step=20 --snapshot-every 1"),
    leave_out("-- COMMAND", f"run kill-smp --at step=20 -- {OWN}", "run kill-smp --at step=20 --snapshot-every 1"),
    leave_out("-- COMMAND", f"run drain-node --at step=20 -- {OWN}", "run drain-node --at step=20"),
]
JOBS = [
    leave_out("--reset", f"{NODE} --reset x", NODE),
    write("-- COMMAND", f"{NODE} --stall-timeout 2min", f"{NODE} --stall-timeout 2min -- {OWN}"),
    write("rank=1", f"{KILL} --on link=0-1 -- {OWN}", f"{KILL} --on rank=1 -- {OWN}"),
    write(
        "link=0-1",
        f"run drop-link --at step=3 --on rank=1 -- {OWN}",
        f"run drop-link --at step=3 --on link=0-1 -- {OWN}",
    ),
    write("link=2-5", "run drop-link --at step=3 --on rank=1", "run drop-link --at step=3 --on link=2-5"),
    write("node=1", "run drain-node --at step=3 --on role=coordinator", "run drain-node --at step=3 --on node=1"),
    write(
        "optimizer",
        f"run set-nan --at step=3,phase=commit -- {OWN}",
        f"run set-nan --at step=3,phase=optimizer -- {OWN}",
    ),
    write("--nodes-per-rack 2", f"{NODE} --on rack=0", f"{NODE} --on rack=0 --nodes-per-rack 2"),
    write("--nodes", f"{KILL} --on node=1 -- {OWN}", f"{KILL} --on node=1 --nodes 2 -- {OWN}"),
    write("--gpus-per-node", f"{KILL} --on rank=7 -- {OWN}", f"{KILL} --on rank=7 --gpus-per-node 8 -- {OWN}"),
    leave_out(
        "--standalone",
        f"{KILL} --backend docker --nodes 2 -- torchrun --standalone train.py",
        f"{KILL} --backend docker --nodes 2 -- torchrun train.py",
    ),
    write("--data-parallel", f"{NODE} --data-parallel 3", f"{NODE} --data-parallel 2"),
    write("--pipeline", f"{NODE} --data-parallel 8 --pipeline 3", f"{NODE} --data-parallel 8 --pipeline 1"),
    write("--device-model a100-7b", f"{NODE} --time-scale 2", f"{NODE} --time-scale 2 --device-model a100-7b"),
    leave_out(
        "--dilation",
        f"{NODE} --time-scale 2 --dilation 2 --device-model a100-7b",
        f"{NODE} --time-scale 2 --device-model a100-7b",
    ),
    write(
        "--time-scale",
        f"{NODE} --time-scale 2 --dilation 2 --device-model a100-7b",
        f"{NODE} --time-scale 4 --device-model a100-7b",
    ),
    leave_out("--dilation", f"{NODE} --dilation 2 --pacing off", f"{NODE} --pacing off"),
    leave_out("--quality", "run share.yaml --quality speed", "run share.yaml"),
    write("takeover", "validate sharded.yaml", "validate sharded-direct.yaml"),
    write("--backend docker", f"{NODE} --node-cpus 2", f"{NODE} --node-cpus 2 --backend docker"),
    leave_out("--twin", f"{KILL} --backend docker --twin -- {OWN}", f"{KILL} --backend docker -- {OWN}"),
    write(
        "--backend local", f"{KILL} --backend docker --reset x -- {OWN}", f"{KILL} --backend local --reset x -- {OWN}"
    ),
    write(
        "--backend local",
        f"{NODE} --backend slurm",
        f"{NODE} --backend local",
        "--backend slurm runs a command of your own over its Slurm hosts; the built-in job runs on one machine: add "
        "-- COMMAND, or choose --backend local",
    ),
    write(
        "--hosts",
        f"{KILL} --backend ssh -- {OWN}",
        f"{KILL} --backend ssh --hosts a,b -- {OWN}",
        "--backend ssh needs hosts: name them with --hosts",
    ),
    leave_out(
        "--nodes",
        f"{KILL} --hosts a,b --nodes 3 -- {OWN}",
        f"{KILL} --hosts a,b -- {OWN}",
        "3 nodes are on 2 hosts: each host is one node; leave --nodes out",
    ),
    leave_out("--network", "run drop-link --at step=5 --network loopback", "run drop-link --at step=5"),
    write(
        "--node-memory",
        "run leak-memory --at step=5 --backend docker --node-memory 256MiB -p limit=512MiB",
        "run leak-memory --at step=5 --backend docker --node-memory 4GiB -p limit=512MiB",
    ),
    write("--nodes", f"{NODE} --model 7b --nodes 500", f"{NODE} --nodes 2"),
    write("--gpus-per-node", f"{NODE} --model 7b --gpus-per-node 250", f"{NODE} --gpus-per-node 1"),
    write("--model", f"{NODE} --model 7b --nodes 500", f"{NODE} --model llama-tiny --nodes 5"),
]
GATES = [
    write("--gate", f"{NODE} --abort-on-fail", f"{NODE} --abort-on-fail --gate 'recovery_seconds < 5'"),
    write(
        "--baseline-run",
        f"{NODE} --no-twin --gate 'loss_deviation < 3%'",
        f"{NODE} --baseline-run --gate 'loss_deviation < 3%'",
    ),
    write(
        "--baseline-run",
        f"{KILL} --gate 'twin_loss < 3' -- {OWN}",
        f"{KILL} --baseline-run --gate 'twin_loss < 3' -- {OWN}",
    ),
    leave_out(
        "--gate", f"{KILL} --backend docker --gate 'twin_loss < 3' -- {OWN}", f"{KILL} --backend docker -- {OWN}"
    ),
    write(
        "--abort-unless EXPRESSION",
        f"{NODE} --abort-on-fail --gate 'goodput >= 50%'",
        f"{NODE} --abort-unless 'recovery_seconds < 5' --gate 'goodput >= 50%'",
    ),
]
COMPARISONS = [
    leave_out(
        "--tolerance",
        "compare --strategies ndb,exact kill-node --at step=5 --tolerance 5%",
        "compare --strategies ndb,exact kill-node --at step=5",
    ),
    write("--strategies", "compare kill-node --at step=5", "compare --strategies ndb,exact kill-node --at step=5"),
]
# Shown during a run, after it, or by another command about runs: of these the text is given.
SHOWN_LATER = [
    write(
        "--reset",
        f"{KILL} -- {OWN}",
        f"{KILL} --reset 'rm -rf out' -- {OWN}",
        text="the job began at step 9, behind step=3: it went on from a checkpoint of its own; --reset 'rm -rf ...' "
        "removes it before each start; of a command in containers, remove it yourself",
    ),
    write(
        "--reset",
        f"{KILL} -- {OWN}",
        f"{KILL} --reset 'rm -rf out' -- {OWN}",
        text="no optimizer step of PyTorch was seen, though an optimizer was made: a job that resumes from its own "
        "checkpoint had nothing left to do. --reset 'rm -rf ...' removes it before each start; of a command in "
        "containers, remove it yourself. A loop with other steps reports them by calling chaos.agent.step()",
    ),
    write(
        "--step-from",
        f"{KILL} -- {OWN}",
        f"{KILL} --step-from 'step (?P<step>[0-9]+)' -- {OWN}",
        text="A loop with other steps reports them by calling chaos.agent.step() once a step, or prints them for "
        "--step-from",
    ),
    write(
        "--on rank=0",
        f"run raise --at step=5,phase=checkpoint --on rank=1 -- {OWN}",
        f"run raise --at step=6,phase=checkpoint --on rank=0 -- {OWN}",
        text="--on rank=0 ",
    ),
    write(
        "--reset",
        f"{KILL} --baseline-run -- {OWN}",
        f"{KILL} --baseline-run --reset 'rm -rf out' -- {OWN}",
        text="The fault-free baseline began at step 21, and the job at 1: it continued from what the job had saved; "
        "--reset puts it back to its beginning before each start.",
    ),
    write(
        "--reset",
        f"{KILL} --baseline-run -- {OWN}",
        f"{KILL} --baseline-run --reset 'rm -rf out' -- {OWN}",
        text="the fault-free baseline took no step. A job that resumes from its own checkpoint has nothing left "
        "to do: --reset 'rm -rf ...' removes the checkpoint before each start",
    ),
    write(
        "--step-from",
        f"{KILL} --step-from 'step (?P<step>[0-9]+)' -- {OWN}",
        f"{KILL} --step-from 'iteration (?P<step>[0-9]+)' -- {OWN}",
        text="no line of the log matched --step-from",
    ),
    write(
        "--stall-timeout",
        f"{KILL} -- {OWN}",
        f"{KILL} --stall-timeout 30min -- {OWN}",
        text="no step was committed for 600 s after step 5; --stall-timeout waits longer",
    ),
    *(
        write(
            option,
            f"{KILL} -- sh train.sh",
            f"{KILL} {option} 2 -- sh train.sh",
            text="the job has 4 ranks, and the plan expected 1: give the numbers with --nodes and --gpus-per-node",
        )
        for option in ("--nodes", "--gpus-per-node")
    ),
    leave_out(
        "--nodes",
        f"{KILL} --backend docker --nodes 2 -- python train.py",
        f"{KILL} --backend docker -- python train.py",
        text="nodes 0 and 1 both have a rank 0: the command trains on each node by itself, and not as one job. Plain "
        "`python` is a job of one node: leave --nodes out. For a job of several, start it by torchrun, or by a "
        "launcher that is told by $PET_NODE_RANK, $PET_MASTER_ADDR and $PET_MASTER_PORT (docs/how-to/containers.md)",
    ),
    write(
        "--checkpoint-every 20",
        "run hide-checkpoint --at step=5 --checkpoint-every 4",
        "run hide-checkpoint --at step=25 --checkpoint-every 20",
        text="the job writes no checkpoints: give it --checkpoint-every 20",
    ),
    write(
        "-p by=rlimit",
        "run leak-memory --at step=5 -p by=cgroup",
        "run leak-memory --at step=5 -p by=rlimit",
        text="no memory control group can be made here for it: use -p by=rlimit, or in a file by: rlimit",
    ),
    write(
        "-p size=1GiB",
        f"run fill-shm --at step=5 -- {OWN}",
        f"run fill-shm --at step=5 -p size=1GiB -- {OWN}",
        text="/dev/shm of rank 0 is the one of this machine, and all processes share its 64 MiB: say how much may be "
        "taken with -p size=1GiB, or in a file size: 1GiB; a container has one of its own",
    ),
    write(
        "--checkpoint-folder",
        f"run hide-checkpoint --at step=5 -- {OWN}",
        f"run hide-checkpoint --at step=5 --checkpoint-folder saved -- {OWN}",
        text="no existing checkpoint was observed (torch.save, safetensors and torch.distributed.checkpoint are "
        "seen): choose a step some way after the first save, or name the folder with --checkpoint-folder",
    ),
    write(
        "--checkpoint-folder",
        "run fill-disk --at step=25 --checkpoint-every 20 --backend docker",
        "run fill-disk --at step=25 --checkpoint-every 20 --backend docker --checkpoint-folder saved",
        text="containers here do not see the small disk that is put over the checkpoint folder: let them, with `mount "
        "--make-rshared /`, or put the checkpoints on a small filesystem of their own with --checkpoint-folder",
    ),
    write(
        "--checkpoint-folder",
        "run fill-disk --at step=25 --checkpoint-every 20",
        "run fill-disk --at step=25 --checkpoint-every 20 --checkpoint-folder saved",
        text="run as root, or give fill-disk a --checkpoint-folder on a small disk of its own",
    ),
    *(
        write(
            "--node-memory",
            "run leak-memory --at step=5 --backend docker --node-memory 1GiB",
            "run leak-memory --at step=5 --backend docker --node-memory 4GiB",
            text=text,
        )
        for text in (
            "9 MiB are left to all that is in the control group x, and 600 are needed: the group would reach its own "
            "limit first. Choose a smaller limit, or raise that of the group (--node-memory, if it is a node's "
            "container)",
            "node-1 reached its memory limit, 1 GiB: the kernel ended 1 process of it. Raise --node-memory",
        )
    ),
    *(
        write("--repair", KILL, f"{KILL} --repair 10s", text=text)
        for text in (
            "nothing to undo: the error ends with the process; --repair starts it again",
            "nothing to undo; --repair starts it again",
        )
    ),
    write(
        "--for",
        "run slow-rank --at step=3",
        "run slow-rank --at step=3 --for 10steps",
        text="    duration: until the job ends, unless --for says otherwise",
    ),
    write(
        "--for",
        "run hide-checkpoint --at step=30 --for 3s --checkpoint-every 20",
        "run hide-checkpoint --at step=30 --for 30s --checkpoint-every 20",
        text="it was put back before the restart (--for says when)",
    ),
    *(
        write(option, f"{KILL} -- {OWN}", f"{KILL} {value} -- {OWN}", text=text)
        for option, value, text in (
            ("--steps", "--steps 60", "Give --steps, or a fault-free baseline (--baseline-run)."),
            ("--baseline-run", "--baseline-run", "Give --steps, or a fault-free baseline (--baseline-run)."),
            ("--steps", "--steps 60", "The fault-free baseline ran with 4 ranks. Give --steps."),
            (
                "--baseline-run",
                "--baseline-run",
                "There is no fault-free baseline to compare with (--baseline-run).",
            ),
        )
    ),
    *(
        write("--dilation", NODE, f"{NODE} --dilation 16", text=text)
        for text in (
            "The machine was too busy for the dilation: compute took up to 30% longer than it should have, and the "
            "figures show it. Repeat it on a quieter machine, or with a larger --dilation.",
            "2 cores: enough to run, too few for meaningful throughput figures; see --dilation",
        )
    ),
    write(
        "--data-parallel",
        NODE,
        f"{NODE} --data-parallel 8",
        text="More replicas (--data-parallel) or checkpoints",
    ),
    *(
        write("--out", NODE, f"{NODE} --out elsewhere", text=text)
        for text in (
            "choose another place with --out",
            "choose another place with --out DIR",
            "no space left for a run in chaos-runs: make room, or choose another place with --out DIR",
            "name another folder with --out",
            "make room, or name another folder with --out",
            "cannot write to chaos-runs: no space left: choose another place with --out",
        )
    ),
    write(
        "--at step=500",
        "runs",
        "run kill-node --at step=500",
        text="no runs in chaos-runs: `chaos run kill-node --at step=500` makes one",
    ),
    write(
        "--at step=100",
        "report",
        "run kill-node --at step=100",
        text="there is no run 'x': chaos-runs holds no runs yet. `chaos run kill-node --at step=100` creates one",
    ),
    write(
        "--at step=30",
        "calibrate --out x.json",
        "run kill-process --at step=30 --device-model a100-7b --time-scale 2",
        text="chaos run kill-process --at step=30 --device-model a100-7b",
    ),
    write(
        "--device-model a100-7b",
        "calibrate --out x.json",
        "run kill-process --at step=30 --device-model a100-7b --time-scale 2",
        text="chaos run kill-process --at step=30 --device-model a100-7b",
    ),
    write(
        "--json",
        "report",
        "report --json",
        text="Phase by phase: report.html in the run's folder, or chaos report --json.",
    ),
    write(
        "--repeat 3",
        NODE,
        f"{NODE} --repeat 3",
        text="worse, or chance? x: too few runs to tell; --repeat 3 on both sides does",
    ),
    write(
        "--anyway",
        "compare one.yaml two.yaml",
        "compare one.yaml two.yaml --anyway",
        text="x; --anyway compares them anyway",
    ),
    write(
        "--repeat 3",
        NODE,
        f"{NODE} --repeat 3",
        text="one run on each side: no differences can be told from chance; --repeat 3 on both sides",
    ),
    write("--max-runs", "shrink", "shrink --max-runs 99", text="stopped after 30 runs: --max-runs allows more"),
    write(
        "--output",
        "shrink",
        "shrink --output x.yaml",
        text="cannot write shrunk.yaml: Read-only file system. Choose another file with --output",
    ),
    *(
        write(
            option,
            "heal",
            f"heal latest {option}",
            text="look with `chaos heal x --dry-run`, then `chaos heal x --yes`",
        )
        for option in ("--dry-run", "--yes")
    ),
    *(
        write(
            option,
            "heal",
            f"heal latest {option}",
            text="--by-hand closes the entries of one run: name it, without --dry-run",
        )
        for option in ("--by-hand", "--dry-run")
    ),
    write("--by-hand", "heal", "heal latest --by-hand", text="    chaos heal runs/x --by-hand"),
    write(
        "--dry-run",
        "heal",
        "heal latest --dry-run",
        text="look with `chaos heal x --dry-run`, then `chmod go-w x` and heal again",
    ),
]
TABLE = [
    *LINES_THAT_CANNOT_BE_PARSED,
    *WHICH_FAULT,
    *TIMES,
    *CHECKPOINTS,
    *JOBS,
    *GATES,
    *COMPARISONS,
    *SHOWN_LATER,
]

# Options of other programs, which this command line does not judge.
OTHER_PROGRAMS = {
    "--build-arg": "docker/build",
    "--clear-groups": "setpriv",
    "--fork": "unshare",
    "--format": "docker context",
    "--ipc": "docker run",
    "--make-rshared": "mount",
    "--max_restarts": "accelerate",
    "--mount-proc": "unshare",
    "--page": "a variable of CSS",
    "--part": "python -m benchmarks.snapshots",
    "--signals-to-handle": "torchrun",
    "--pid": "unshare",
    "--regid": "setpriv",
    "--reuid": "setpriv",
    "--saving": "python -m benchmarks.snapshots",
    "--scope": "systemd-run",
    "--security-opt": "docker run",
    "--shm-size": "docker run",
    "--tag": "docker/build",
    "--tmpfs": "docker run",
    "--ulimit": "docker run",
    "--user": "systemd-run",
    "--window-size": "a browser",
    "--net": "nsenter",
}
# Part of a message, or the file that it is in -> why it has no row.
EXCEPTIONS = {
    "mecefo_runtime/launch/": "the command line of `python -m mecefo_runtime`, which its own tests judge",
    "mecefo_chaos/studies/papers/": "`chaos paper`: what it advises takes minutes",
    "mecefo_chaos/cli/paper/": "`chaos paper`",
    "mecefo_chaos/studies/forecast/cluster_file.py": "`chaos forecast`",
    "mecefo_chaos/cli/forecast.py": "`chaos forecast`",
    "chaos/host/containers.py": "needs a Docker engine that does not answer",
    "harness/backends/docker/examination.py": "needs a Docker engine",
    "harness/backends/docker/backend.py": "needs a Docker engine",
    "mecefo_chaos/cli/doctor.py": "says what there is, and advises nothing",
    "harness/store/sentences.py": "reads sentences of logs, and shows none",
    "systemd-run --user": "the options of systemd-run",
    "squeue --noheader": "a command of Slurm that is run",
    "have not: choose another {setting('backend')}": "said only of a backend of another package",
    "--param {": "the name of a place in a command line",
    "torchrun --standalone --nproc-per-node 2 train.py": "an example of the schema",
    "With --quality {": "a comparison of two qualities, which the run that prints it takes",
}
# Options that a message names without advising them: part of the message, option, and why.
ONLY_NAMED = {
    ("needs hosts: name them with", "--backend"): "the backend that needs what is advised",
    ("it has no meaning with --strategies", "--strategies"): "the option that makes the other one meaningless",
}
