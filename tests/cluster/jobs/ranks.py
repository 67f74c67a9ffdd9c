"""Who a process is, under torchrun or as a task of `srun`; and torch without its compiler."""

import os
import subprocess
import sys
import types


def leave_compiler_out() -> None:
    """Let optimizers and DDP find a stand-in for torch._dynamo, whose import takes longer than that of torch.

    Four ranks on two cores are at their first step in half of the time. FSDP needs the real one. WITH_COMPILER=1: torch
    as it is.
    """
    if os.environ.get("WITH_COMPILER") == "1" or "torch._dynamo" in sys.modules:
        return
    import torch

    dynamo, utils = types.ModuleType("torch._dynamo"), types.ModuleType("torch._dynamo.utils")
    dynamo.disable = lambda function=None, *_, **__: function  # type: ignore[attr-defined]
    dynamo.graph_break = lambda *_, **__: None  # type: ignore[attr-defined]
    dynamo.trace_rules = types.SimpleNamespace(clear_lru_cache=lambda: None)  # type: ignore[attr-defined]
    dynamo.utils = utils  # type: ignore[attr-defined]
    utils.get_optimize_ddp_mode = lambda: "ddp_optimizer"  # type: ignore[attr-defined]
    sys.modules |= {"torch._dynamo": dynamo, "torch._dynamo.utils": utils}
    torch._dynamo = dynamo


def take_rank() -> None:
    """Set what torch.distributed reads, where `srun` or `chaos run --hosts` started this process, and no torchrun.

    MASTER_PORT must be given.
    """
    given = os.environ
    if "RANK" in given:
        return
    if "SLURM_PROCID" in given:
        given["RANK"], given["LOCAL_RANK"] = given["SLURM_PROCID"], given["SLURM_LOCALID"]
        given["WORLD_SIZE"] = given["SLURM_NTASKS"]
        if "MASTER_ADDR" not in given:
            words = ["scontrol", "show", "hostnames", given["SLURM_STEP_NODELIST"]]
            given["MASTER_ADDR"] = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[0]
    else:
        given["RANK"], given["LOCAL_RANK"], given["WORLD_SIZE"] = given["NODE_RANK"], "0", given["NNODES"]
