"""Forms the groups of an epoch as the coordinator describes them, and gives up as soon as the epoch is over."""

from __future__ import annotations

import torch

from mecefo_runtime.comm import nccl
from mecefo_runtime.comm.coordinator_client import CoordinatorClient
from mecefo_runtime.comm.groups import Formation, Groups
from mecefo_runtime.comm.messages import Form
from mecefo_runtime.comm.operations import Owner
from mecefo_runtime.comm.rendezvous import RendezvousStore, form_timeout_seconds
from mecefo_runtime.comm.transport import Transport, lanes
from mecefo_runtime.job.config import JobConfig

# Forming groups has its own time-outs inside; these catch what gloo and NCCL forget.
FORMATION_DEADLINE_TIMEOUTS = 5
NCCL_FORMATION_DEADLINE_SECONDS = 2 * nccl.FORM_TIMEOUT_SECONDS


def form_groups(
    message: Form,
    rank: int,
    job: JobConfig,
    device: torch.device,
    client: CoordinatorClient,
    host: str,
) -> Groups:
    """Form the groups of the epoch that `message` describes, as `rank`, whose tensors lie on `device`.

    Raises:
        EpochBroken: a peer did not come, or the epoch is over before it began.
    """
    epoch, members = message.epoch, message.members
    layout, background = message.layout, message.background
    uses_nccl = message.device_way == "nccl"
    client.values.forget()
    reductions = background.reduction_groups(layout)
    timeout_seconds = form_timeout_seconds(len(members))
    used = lanes(layout, background, message.transfers, members, measures_transfer=message.measure_transfer)

    def form_nccl(owner: Owner) -> Transport:
        store = RendezvousStore(client.values.put, client.values.take, nccl.FORM_TIMEOUT_SECONDS)
        return nccl.Nccl(store, str(epoch), rank, used, reductions, owner, device)

    def form() -> Groups:
        return Groups(
            RendezvousStore(client.values.put, client.values.take, timeout_seconds),
            epoch,
            rank,
            members,
            reductions,
            job.collective_timeout_seconds,
            host,
            form_device_groups=form_nccl if uses_nccl else None,
        )

    formation = Formation(form, client.notify)
    deadline_seconds = NCCL_FORMATION_DEADLINE_SECONDS if uses_nccl else FORMATION_DEADLINE_TIMEOUTS * timeout_seconds
    try:
        client.wait_until(lambda: formation.done, deadline_seconds)
        return formation.take()
    finally:
        formation.abandon()
