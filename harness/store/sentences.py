"""Sentences of logs that have no codes, as reasons: the only place where a sentence is read.

Earlier versions wrote why an incident did not fire, why one was not verified and why a job failed as sentences alone.
They are frozen here as those versions wrote them, and do not follow what this version writes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mecefo_runtime.system.events import Event
from mecefo_runtime.system.json_values import to_json
from mecefo_runtime.system.reason import Reason

_NEVER_FIRED, _NOT_ALLOWED = "never fired: ", "not fired: "
_NOT_FIRED = (
    ("no_snapshot", r"no snapshot of step .+ or a later one was (?:copied by|encoded on the nodes of) .+"),
    ("began_behind", r"the job began at step .+, behind .+: it went on from a checkpoint of its own; .+"),
    ("rank_absent_or_no_phase", r".+ was not in the job when the job reached .+, or has no such phase in that step"),
    ("rank_absent", r".+ was not in the job,?(?: or not observed,)? when the job reached .+"),
    ("phase_in_other_steps", r".+ ha(?:s|ve) no .+ phase in step .+; it came .+"),
    ("phase_on_other_ranks", r".+ (?:saves? no checkpoint|ha(?:s|ve) no .+ phase); .+ (?:does|do|has|have), .+"),
    ("phase_never_came", r"no .+ phase came in the job; the phases seen are .+"),
    ("job_ended_before", r"the job ended before .+"),
    ("max_nodes", r".+ nodes would be affected at once, more than max_nodes .+"),
    ("max_ranks", r".+ ranks would be affected at once, more than max_ranks .+"),
    ("min_healthy", r".+ of .+ ranks would be healthy, less than min_healthy .+"),
    ("exclusive", r"incident .+ is still active on .+, and only one fault at a time can change .+"),
)
_REFUSED = (
    ("no_checkpoints", r"the job writes no checkpoints: .+"),
    ("nothing_saved", r"the script has saved nothing so far .+"),
    ("not_in_folder", r"nothing was saved in .+"),
    ("files_gone", r"saves.* were seen in .+, but no regular file that was saved since the run began is there now: .+"),
    ("no_folder", r"saves.* were seen in .+, which is no folder of this machine: .+"),
    ("several_folders", r"saves.* were seen in .+: name the one that is meant with .+"),
    ("no_folder", r"there is no folder .+ yet: .+"),
    ("no_snapshot_process", r".+ has no snapshot process(?:: node .+)?"),
    ("part_delivered", r".+: the process (?:still delivers it|rejects it for another reason: .+)"),
    ("rank_not_held", r"rank .+ (?:is not held|has no agent: .+), so nothing can be done inside it"),
    ("no_answer", r".+ did not answer within .+ s"),
    ("not_stopped", r"not stopped .+ s after SIGSTOP: .+"),
    (
        "too_little_room_in_group",
        r".+ MiB are left to all that is in the control group .+, and .+ are needed: the group would "
        r"reach its own limit first\. Choose a smaller limit, or raise that of the group \(--node-memory, "
        r"if it is a node's container\)",
    ),
    (
        "not_in_network",
        r"rank .+ \(pid .+\) is not in the network made for it, so faults cannot reach it\. A rank moves "
        r"there as its Python starts, and must have RANK in its environment by then, as torchrun sets it",
    ),
    (
        "nccl_past_network",
        r"NCCL goes over link .+ by .+, which is .+.+: no rule of a network touches that\. Start the job "
        r"with .+ in its environment, and it goes through the network",
    ),
    (
        "too_little_memory",
        r"there are .+ MiB of memory left on this machine, and .+ are needed to leak this much without "
        r"danger to others: choose a smaller limit",
    ),
    (
        "no_complete_checkpoint",
        r"there is no complete checkpoint in .+ yet: choose a step some way after the first that writes "
        r"one",
    ),
    (
        "working_folder",
        r"the script saves in .+, and rank .+ works in it, so that it would not see a small disk over it: "
        r".+",
    ),
    ("no_memory_group", r"no memory control group can be made here for it: use -p by=rlimit, or in a file by: rlimit"),
    ("delay_within_noise", r"link .+: a round trip takes .+ s, within the noise of .+ s around .+ s before the fault"),
    ("no_save_failed", r"the disk is full, but within .+ s no checkpoint failed and was followed by a step"),
    ("no_data_worker", r"rank .+ has no DataLoader worker now: its loader has num_workers=0, or has ended"),
    ("sleep_within_noise", r"sleeps of .+ s are within the noise: the .+ steps before them usually vary by .+ s"),
    (
        "snapshot_process_without_agent",
        r"the snapshot process of node .+ has no agent: it has ended, or has not started",
    ),
    ("link_dead_before", r"link .+ carried no probe before the fault, so an effect could not be measured"),
    ("no_two_steps", r"no two steps in a row were committed, so it is not known how long they took"),
    ("stopped_otherwise", r".+ was stopped for .+ of the time \(.+ looks\), not for .+ as a factor of .+ asks"),
    ("still_opens", r".+ can still be opened: the job has rewritten it, or removed what hid it"),
    ("snapshot_overwritten", r".+: the next snapshot was begun there before its reader could be checked"),
    ("started_again", r".+ was started again by the launcher of its node before that was killed"),
    ("no_out_of_memory_kill", r".+ ended \(.+\), but its control group reports no out-of-memory kill"),
    ("committed_before_wake", r"step .+ was committed .+ s before the rank that slept in it woke up"),
    ("link_end_gone", r".+ any more: it ended before the effect on its link was verified"),
    ("no_links_in_backend", r".+ needs a backend whose nodes have network links of their own"),
    ("rewritten_by_job", r".+ is not what the fault made of it: the job has rewritten it"),
    ("node_not_released", r"the job did not release the node within .+ s of the notice: .+"),
    ("undone_before_seen", r".+ is gone: the fault was undone before its effect was seen"),
    ("no_complete_snapshot", r"node .+ keeps no complete snapshot yet: choose a later step"),
    ("threads_still_run", r"other Python threads ran for .+ s: witnesses pulsed .+ times"),
    ("hang_not_watched", r".+ has ended, or has no watching thread: it does not hang"),
    ("wide", r".+, where the script saves, holds more than checkpoints: .+"),
    ("no_running_rank", r".+ has no running rank, and this fault acts inside ranks"),
    ("too_few_steps", r"only .+ steps were committed since, of .+ needed to judge"),
    ("cuda_still_works", r"rank .+: CUDA calls still worked after the assertion: .+"),
    ("limit_too_high", r"link .+ carries .+: .+ does not limit it enough to be seen"),
    ("still_taken_for_whole", r"the runtime's reader still takes .+ for whole: .+ files"),
    ("no_link_between", r"there is no link .+: both ends are in the network of .+"),
    ("link_carries_traffic", r"link .+ still carries traffic: .+ of .+ probes came back"),
    ("limit_not_reached", r"not ended by its memory limit within .+ s; it grew: .+"),
    ("refused_for_something_else", r"the runtime's reader refuses .+ for something else: .+"),
    ("no_rank_with_device", r".+ has no running rank, and only ranks have devices"),
    ("unit_not_kept", r"node .+ keeps nothing of .+: its ranks do not hold it"),
    ("snapshot_begun_again", r"node .+ begins another snapshot in the place of .+'s"),
    ("no_allocation_failed", r"rank .+: no allocation failed, .+ bytes were taken"),
    ("grown_too_little", r".+ ended \(.+\) when it had grown by only .+ MiB of .+"),
    ("gone_again", r".+ is not there any more: the job has removed it"),
    ("steps_not_slower", r"steps took .+ s, though a rank slept .+ s in each"),
    ("ended_before_measured", r".+: ended before its slowdown could be measured"),
    ("values_unchanged", r"rank .+: .+: the values in memory did not change"),
    ("change_not_reported", r".+: the rank did not report whether it changed"),
    ("stopped_not_hung", r".+ is stopped by a signal, which is not a hang"),
    ("disk_not_full", r"a write of 1 byte to .+ .+: its disk is not full"),
    ("run_ended_before_verified", r"the run ended before its effect was verified"),
    ("nccl_way_not_read", r"which way NCCL takes cannot be read from .+: .+"),
    ("not_started_inside", r"the fault was not started inside the ranks"),
    ("no_telemetry", r"this run records no telemetry of devices"),
    ("delay_too_short", r"link .+: a round trip is .+ s longer, not .+ s"),
    ("log_names_no_crash", r".+ ended with .+, but its log does not name .+"),
    ("no_such_data_worker", r"rank .+ has no DataLoader worker .+: it has .+"),
    ("not_by_allocation", r".+ ended, but not by a failed allocation: .+"),
    ("links_not_probed", r"the links could not be probed within .+ s"),
    ("no_sleep", r"the delay started in no rank: 0 sleeps"),
    ("network_not_found", r"the network of rank .+ cannot be found: .+"),
    ("link_end_missing", r".+: a broken link to it changes nothing"),
    ("ended_without_report", r"rank .+ has ended and reported nothing"),
    ("not_still", r"not still: .+ s of CPU time within .+ s"),
    ("stream_finished", r"rank .+: its stream finished within .+"),
    ("telemetry_missing", r"the log has no telemetry of ranks .+"),
    ("removed_by_job", r".+ was removed by the job just now: .+"),
    ("step_not_committed", r"step .+ was not committed within .+ s"),
    ("step_not_checked", r".+; .+, and no rank checked the step"),
    ("reader_too_slow", r"the reader did not finish .+ in .+ s"),
    ("just_removed_by_job", r".+ was removed by the job just now"),
    ("no_report", r"rank .+ reported nothing within .+ s"),
    ("loss_rate_differs", r"link .+: .+, which is not .+ each way"),
    ("nothing_running", r"nothing of .+ is running any more"),
    ("ended_before_effect", r".+ ended before the effect began"),
    ("link_has_connections", r"link .+ still has connections: .+"),
    ("no_whole_checkpoint", r"no checkpoint in .+ is whole: .+"),
    ("sleep_too_short", r"a sleep was .+ s only, not .+ s"),
    ("bits_unchanged", r".+: the bits are as they were"),
    ("bandwidth_differs", r"link .+ carries .+ bit/s, not .+"),
    ("chaos_itself", r"the target is chaos itself"),
    ("cannot_fill_disk", r"cannot fill the disk of .+: .+.+"),
    ("link_not_switched", r"link .+ was not .+ within .+ s"),
    ("still_running", r"still running after .+ s: .+"),
    ("no_such_unit", r".+ has no unit .+: it has .+"),
    ("no_such_file", r".+ has no file .+: it has .+"),
    ("memory_gone", r".+ is not there any more"),
    ("memory_not_opened", r".+ cannot be opened: .+; .+"),
    ("ended_otherwise", r"ended, but not by .+: .+"),
    ("rank_gone", r"rank .+ is not there"),
    ("cannot_damage", r"cannot damage .+: .+"),
    ("just_ended", r".+ has just ended"),
    ("cannot_hide", r"cannot hide .+: .+"),
    ("no_rank", r".+ is no rank"),
    ("no_link", r".+ is no link"),
    ("values_not_used", r".+; .+.+"),
    ("refused_inside", r".+: .+"),
)
_FAILED = (
    ("stalled", r"no step was committed for .+ s after step .+"),
    ("all_nodes_gone", r"all nodes were gone before the first step; see their logs"),
    ("never_began", r"in .+ s (?:no step was committed|no optimizer step of PyTorch was seen|no line of the log) ?.*"),
    ("ranks_missing", r"ranks .+ did not (?:start|come back) within .+ s; see their logs"),
    ("runtime_bug", r"a bug of the runtime: .+"),
    ("nothing_to_start_from", r".+\. There is no snapshot and no checkpoint to start again from"),
    ("no_rank_completed", r".*the command ended with exit code 0, but none of its ranks completed.*"),
)
_KINDS = frozenset({"not_due", "unverified", "job_failed"})


def with_code(event: Event) -> Event:
    """The event as this version writes it: with `why`, the reason and its code, in addition to the sentence."""
    if event.kind not in _KINDS or "why" in event.fields or not isinstance(event.fields.get("reason"), str):
        return event
    return replace(event, fields={**event.fields, "why": to_json(_reason(event.kind, event.fields))})


def _reason(kind: str, fields: Mapping[str, Any]) -> Reason:
    sentence, code = fields["reason"], fields.get("code")
    if kind == "job_failed":
        return Reason(_of_failure(sentence, fields.get("exit")), sentence=sentence)
    for prefix, outer in ((_NEVER_FIRED, "never_fired"), (_NOT_ALLOWED, "not_allowed")):
        if sentence.startswith(prefix):
            rest = sentence.removeprefix(prefix)
            inner = code if isinstance(code, str) else _code(_NOT_FIRED, rest, "not_due")
            return Reason(outer, why=Reason(inner, sentence=rest), sentence=sentence)
    if isinstance(code, str):
        return Reason(code, sentence=sentence)
    if kind == "not_due":
        return Reason(_code(_NOT_FIRED, sentence, kind), sentence=sentence)
    return Reason(_code(_REFUSED, sentence, kind), sentence=sentence)


def _of_failure(sentence: str, exit_code: object) -> str:
    code = _code(_FAILED, sentence, "job_failed")
    if code == "job_failed" and isinstance(exit_code, int):
        return "command_killed" if exit_code < 0 else "command_failed"
    return code


def _code(patterns: tuple[tuple[str, str], ...], sentence: str, otherwise: str) -> str:
    """The first that fits; after a sentence of `_REFUSED` may stand what explains it."""
    found = (code for code, pattern in patterns if re.fullmatch(rf"(?:{pattern})(?:[:;] .+)?", sentence, re.DOTALL))
    return next(found, otherwise)
