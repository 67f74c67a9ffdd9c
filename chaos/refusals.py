"""Why an incident did not fire, was refused, not verified or not undone: each code, and its sentence.

A new reason is a line of a table here, and the place that raises it: `EffectNotSeen(Reason("bits_unchanged", ...))`, of
`chaos.errors`. A fault of another package may raise one with its own text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chaos.step_ranges import Steps, joined, on_other_ranks, ranks_text
from mecefo_runtime.system.reason import Made, Reason, Table

FOLDER_OPTION = "--checkpoint-folder"
_SAVES = "torch.save, safetensors and torch.distributed.checkpoint"
_MAX_NAMED = 4


def refusal_text(why: Reason) -> str:
    """The sentence."""
    return REFUSALS.text(why)


# ---- it did not fire ----


def _no_snapshot(phase: str, step: int, target: str) -> str:
    what = "copied by" if phase == "snapshot" else "encoded on the nodes of"
    return f"no snapshot of step {step} or a later one was {what} {target} before the job ended"


def _rank_absent(target: str, trigger: str, is_command: bool = False) -> str:
    missing = "was not in the job, or not observed," if is_command else "was not in the job"
    return f"{target} {missing} when the job reached {trigger}"


def _in_other_steps(
    target: str, phase: str, step: int, steps: Any, own: Sequence[int] = (), advice: str | None = None
) -> str:
    have = "have" if len(own) > 1 else "has"
    cure = "" if advice is None else f": write {advice}"
    return f"{target} {have} no {phase} phase in step {step}; it came {Steps(steps).when}{cure}"


def _on_other_ranks(
    phase: str, steps: Any, own: Sequence[int] = (), ranks: Sequence[int] = (), advice: str | None = None
) -> str:
    return on_other_ranks(phase, own, ranks, Steps(steps), advice)


def _never_came(phase: str, phases: Sequence[str], is_command: bool = False) -> str:
    how = f", and saves are seen by {_SAVES} on the training thread" if is_command and phase == "checkpoint" else ""
    return f"no {phase} phase came in the job; the phases seen are {joined(phases)}{how}"


def _bytes_not_seen(target: str, step: int, num_bytes: int, reached: int | None = None) -> str:
    seen = (
        "no file was seen open for writing (a small one is written too fast; after=file is exact)"
        if reached is None
        else f"the one that came furthest was at {reached:,}"
    )
    return f"the save of {target} after step {step} was over before byte {num_bytes:,} of a file was seen: {seen}"


def _ended_before(trigger: str, target: str | None = None) -> str:
    return f"the job ended before {f'{target} came to ' if target else ''}{trigger}"


NOT_FIRED = Table(
    {
        "no_snapshot": Made(
            _no_snapshot, "no snapshot of step {step} or a later one was copied by {target} before the job ended"
        ),
        "began_behind": (
            "the job began at step {first_step}, behind {trigger}: it went on from a checkpoint of its own; --reset "
            "'rm -rf ...' removes it before each start; of a command in containers, remove it yourself"
        ),
        "rank_absent": Made(_rank_absent, "{target} was not in the job when the job reached {trigger}"),
        "rank_absent_or_no_phase": (
            "{target} was not in the job when the job reached {trigger}, or has no such phase in that step"
        ),
        "phase_in_other_steps": Made(
            _in_other_steps, "{target} has no {phase} phase in step {step}; it came in {steps}: write {advice}"
        ),
        "phase_on_other_ranks": Made(
            _on_other_ranks, "{own} has no {phase} phase; {ranks} have, in {steps}: write {advice}"
        ),
        "first_not_verified": "incident {incident}, which it follows, was not verified",
        "bytes_not_seen": Made(
            _bytes_not_seen,
            "the save of {target} after step {step} was over before byte {num_bytes} of a file was seen: the one that "
            "came furthest was seen at byte {reached}",
        ),
        "nothing_renamed": "{target} renamed nothing that it had saved after step {step}, on the thread that trains",
        "no_file_written": "no save of a file by {target} returned after step {step}, on the thread that trains",
        "no_save_in_flight": "no asynchronous save of {target} was in flight at step {step} or later",
        "phase_never_came": Made(_never_came, "no {phase} phase came in the job; the phases seen are {phases}"),
        "job_ended_before": Made(_ended_before, "the job ended before {target} came to {trigger}"),
        "max_nodes": "{nodes} nodes would be affected at once, more than max_nodes {limit}",
        "max_ranks": "{ranks} ranks would be affected at once, more than max_ranks {limit}",
        "min_healthy": "{healthy} of {ranks} ranks would be healthy, less than min_healthy {limit:.4g}",
        "exclusive": (
            "incident {incident} ({fault}) is still active on {where}, and only one fault at a time can change {what}"
        ),
    }
)
"""Why an incident did not fire. One that had to fire has `never_fired` or `not_allowed`, with one of these as `why`."""


def _never_fired(why: Reason) -> str:
    return f"never fired: {NOT_FIRED.text(why)}"


def _not_allowed(why: Reason) -> str:
    return f"not fired: {NOT_FIRED.text(why)}"


# ---- nothing to act on, in storage ----


def _not_in_folder(folder: str, seen: Sequence[str] = (), steps: Any = (), ranks: Sequence[int] = ()) -> str:
    if seen:
        return (
            f"nothing was saved in {folder} since the run began; {_saves(seen, steps, ranks)}: write "
            f"{FOLDER_OPTION} {seen[0]}"
        )
    return f"nothing was saved in {folder} yet: choose a step some way after the first save"


def _files_gone(seen: Sequence[str], steps: Any = (), ranks: Sequence[int] = ()) -> str:
    return (
        f"{_saves(seen, steps, ranks)}, but no regular file that was saved since the run began is there now: choose a "
        f"step some way after a save, or name the folder of the checkpoints with {FOLDER_OPTION} DIR"
    )


def _several_folders(seen: Sequence[str], steps: Any = (), ranks: Sequence[int] = ()) -> str:
    return f"{_saves(seen, steps, ranks)}: name the one that is meant with {FOLDER_OPTION} {seen[0]}"


def _no_folder(folder: str | None = None, seen: Sequence[str] = (), steps: Any = (), ranks: Sequence[int] = ()) -> str:
    if seen:
        saves = _saves(seen, steps, ranks)
        return f"{saves}, which is no folder of this machine: name one with {FOLDER_OPTION} DIR"
    return f"there is no folder {folder} yet: choose a step after the first checkpoint"


def _saves(seen: Sequence[str], steps: Any, ranks: Sequence[int]) -> str:
    others = len(seen) - _MAX_NAMED
    where = joined([*seen[:_MAX_NAMED], *([f"{others} more folders"] if others > 0 else [])])
    whose = f" by {ranks_text(ranks)}" if ranks else ""
    return f"saves{whose} were seen in {where}{f' ({Steps(steps)})' if steps else ''}"


_NO_PLACE = Table(
    {
        "no_checkpoints": "the job writes no checkpoints: give it --checkpoint-every 20",
        "nothing_saved": (
            f"the script has saved nothing so far ({_SAVES} are seen, on the training thread): choose a step some way "
            f"after its first save, or name the folder of its checkpoints with {FOLDER_OPTION} DIR"
        ),
        "not_in_folder": Made(
            _not_in_folder, f"nothing was saved in {{folder}} since the run began; ...: write {FOLDER_OPTION} {{seen}}"
        ),
        "files_gone": Made(
            _files_gone,
            "saves were seen in {seen}, but no regular file that was saved since the run began is there now: ...",
        ),
        "several_folders": Made(_several_folders, "saves were seen in {seen}: name the one that is meant ..."),
        "no_folder": Made(_no_folder, "there is no folder {folder} yet: choose a step after the first checkpoint"),
    }
)

# ---- refused, or not verified ----


def _with_cause(why: Reason, because: str, sign: str = ": ") -> str:
    return f"{refusal_text(why)}{sign}{because}"


def _no_snapshot_process(target: str, node: int | None = None) -> str:
    return f"{target} has no snapshot process{'' if node is None else f': node {node}'}"


def _delivered(part: str, refusal: str | None = None) -> str:
    how = "still delivers it" if refusal is None else f"rejects it for another reason: {refusal}"
    return f"{part}: the process {how}"


def _not_held(rank: int, has_agent: bool) -> str:
    what = "is not held" if has_agent else "has no agent: it has ended, or has not started"
    return f"rank {rank} {what}, so nothing can be done inside it"


def _not_stopped(seconds: float, processes: Sequence[str]) -> str:
    return f"not stopped {seconds:g} s after SIGSTOP: {', '.join(processes)}"


# ---- not undone ----


def _still_stopped(pids: Sequence[int]) -> str:
    return f"still stopped after SIGCONT: pid {', '.join(map(str, pids))}; try `kill -CONT` yourself"


def _rules_still_there(comment: str, place: str, rules: Sequence[str]) -> str:
    return f"{len(rules)} rules {comment} at {place} are still there: {'; '.join(rules)}"


def _connections_forbidden(error: str, ptrace_scope: str | None = None) -> str:
    what = f"the connections of other processes may not be changed on this host (pidfd_getfd: {error})"
    if ptrace_scope in (None, "0"):
        return f"{what}: a container's seccomp profile may forbid it; CAP_SYS_PTRACE or another profile allows it"
    cure = "sysctl kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE, allows it"
    return f"{what}: Yama's ptrace_scope is {ptrace_scope}; {cure}"


def _links_not_restored(rules: int, left: Sequence[Reason]) -> str:
    return f"{len(left)} of {rules} rules are still there: {'; '.join(map(refusal_text, left))}"


NOT_UNDONE = Table(
    {
        # the record or the ledger is refused, and nothing was touched
        "ledger_not_believed": "{because}: {advice}",
        "belongs_elsewhere": "{what} belongs to {owner}: run `chaos heal` there",
        "registry_entry_unreadable": "{path} should name a running run, and cannot be read: look at it, then remove it",
        "earlier_run_unclean": "an earlier run left something behind: {folder}: {left}. Undo it with `chaos heal`",
        "undo_not_installed": "no fault {fault!r} is installed that could undo it",
        "entry_of_another_run": "the entry is of another run ({run}): left alone",
        "record_not_understood": "the undo record cannot be understood: {error}",
        "not_a_whole_path": "{path!r} is no whole path: left alone",
        "not_a_file_name": "{name!r} is no name of a file: left alone",
        "link_in_path": "{path} is reached through a link ({name}): left alone",
        "link_leads_out": "{path} is reached through a link that leads to {leads_to}: left alone",
        "not_in_folders_of_job": ("{path} is in none of the folders that the run registered as its job's: left alone"),
        "not_a_regular_file": "{path} is no regular file: left alone",
        "not_our_fifo": "{path} is no FIFO of ours: left alone",
        "not_our_ballast": "{path} is not called as what fills a disk: left alone",
        "not_our_shm_file": "{name!r} is no name of a file of ours in /dev/shm: left alone",
        "shm_file_left": "/dev/shm of pid {pid} cannot be looked into, and {name} may be there: {error}",
        "not_our_disk": "{name!r} is no name of a disk of ours: left alone",
        "other_disk_mounted": "what is mounted on {path} is no disk called {name}: left alone",
        "not_moved_there": "{path} is no place to which {folder} was moved aside: left alone",
        "not_our_group": "{group} is no control group that a limit was made with: left alone",
        "limit_without_group": "the record of a limit by {by} names no control group",
        "limit_before_unknown": "the record of a limit by {by} does not say what it was before",
        "container_of_another_run": "container {container} is none of run {run}: left alone",
        "not_our_rules": "{comment!r} is no comment of rules of ours: left alone",
        "rules_without_place": "the record of rules {comment} names neither a container nor a process",
        "rule_kind_unknown": "nothing here removes rules of sort {how!r}: {record}",
        # something is still there
        "still_hangs": "pid {pid} still hangs: no Python thread of it ran for {seconds:g} s",
        "still_stopped": Made(_still_stopped, "still stopped after SIGCONT: pid {pids}; try `kill -CONT` yourself"),
        "effect_not_ended": "rank {rank} did not end its effect within {seconds:g} s",
        "folder_not_put_back": "cannot put {kept} back as {folder}: {error}",
        "place_is_taken": "{folder} is something else now: the checkpoint that was there is {kept}",
        "file_not_put_back": "cannot put {path} back from {kept}: {error}",
        "copy_not_whole": "{path} is damaged, and its copy {kept} is not there or not whole",
        "disk_not_freed": "cannot free the disk of {folder}: {error} ({path})",
        "disk_still_full": "the disk of {folder} is still full, though nothing of ours is on it any more",
        "snapshot_begun_meanwhile": "node {node} began a snapshot while bits were flipped back: it may be damaged",
        "bits_still_flipped": "the bits in the memory of node {node} are still flipped",
        "connections_not_restored": "connections to {peers} have not got their options back: {failed}",
        "group_not_removed": "the control group {group} cannot be removed: {error}",
        "rules_not_removed": "the rules {comment} at {place} cannot be removed: {error}",
        "rules_still_there": Made(_rules_still_there, "rules {comment} at {place} are still there: {rules}"),
        "links_not_restored": Made(_links_not_restored, "of {rules} rules are still there: {left}"),
        "engine_not_cleaned": "what the run has in the Docker engine cannot be removed: {error}",
        "left_in_engine": "still in the Docker engine after {seconds:g} s: {left}",
        "container_state_unknown": "nobody knows whether container {container} runs: {error}",
        # the undo itself did not work
        "undo_broke_down": "the undo of {fault} broke down at {place}: {error}",
        "end_broke_down": "the end of {fault} broke down: {error}",
        "order_not_returned": "an order for {fault} has not returned",
    }
)
"""Why something that was changed could not be changed back, or may not be."""

REFUSALS = Table(
    {
        "never_fired": Made(_never_fired, "never fired: {why}"),
        "not_allowed": Made(_not_allowed, "not fired: {why}"),
        "with_cause": Made(_with_cause, "{why}: {because}"),
        "no_snapshot_process": Made(_no_snapshot_process, "{target} has no snapshot process: node {node}"),
        "part_delivered": Made(_delivered, "{part}: the process still delivers it"),
        "rank_not_held": Made(_not_held, "rank {rank} is not held, so nothing can be done inside it"),
        "no_answer": "{place} did not answer within {seconds:g} s",
        "not_stopped": Made(_not_stopped, "not stopped {seconds} s after SIGSTOP: {processes}"),
        "no_running_rank": "{target} has no running rank, and this fault acts inside ranks",
        "not_started_inside": "the fault was not started inside the ranks",
        "values_unchanged": "rank {rank}: {affected}: the values in memory did not change",
        "values_not_used": "{where}; {outcome}{because}",
        "change_not_reported": "{where}: the rank did not report whether it changed",
        "step_not_checked": "{where}; {outcome}, and no rank checked the step",
        "cuda_still_works": "rank {rank}: CUDA calls still worked after the assertion: {errors}",
        "stream_finished": "rank {rank}: its stream finished within {watched}",
        "no_allocation_failed": "rank {rank}: no allocation failed, {taken_bytes} bytes were taken",
        "no_rank_with_device": "{target} has no running rank, and only ranks have devices",
        "no_telemetry": "this run records no telemetry of devices",
        "telemetry_missing": "the log has no telemetry of ranks {missing}",
        "link_not_switched": "link {link} was not {state} within {seconds:g} s",
        "no_rank": "{target} is no rank",
        "no_links_in_backend": "{fault} needs a backend whose nodes have network links of their own",
        "no_link": "{target} is no link",
        "link_end_missing": "{missing}: a broken link to it changes nothing",
        "link_end_gone": "{missing} any more: it ended before the effect on its link was verified",
        "link_carries_traffic": "link {link} still carries traffic: {came_back} of {probes} probes came back",
        "link_has_connections": "link {link} still has connections: {connections}",
        "link_dead_before": "link {link} carried no probe before the fault, so an effect could not be measured",
        "links_not_probed": "the links could not be probed within {seconds:g} s",
        "delay_too_short": "link {link}: a round trip is {longer_seconds:.4f} s longer, not {delay_seconds:g} s",
        "delay_within_noise": (
            "link {link}: a round trip takes {round_trip_seconds:.4f} s, within the noise of {noise_seconds:.4f} "
            "s around {before_seconds:.4f} s before the fault"
        ),
        "loss_rate_differs": "link {link}: {lost}, which is not {loss:g} each way",
        "bandwidth_differs": "link {link} carries {bits_per_second:.3g} bit/s, not {limit}",
        "limit_too_high": "link {link} carries {carried}: {limit} does not limit it enough to be seen",
        "chaos_itself": "the target is chaos itself",
        "other_host": "{process} runs on {host}, which cannot be reached from here",
        "other_boot": "{process} ran on {host} before it was started again",
        "nothing_running": "nothing of {target} is running any more",
        "nobody_to_notify": "no process of the command gets a notice with deliver={deliver}",
        "watchdog_ends_with_step": (
            "what {fault} changes outlives the processes of this Slurm step, and the watchdog that would undo it does "
            "not: run chaos outside of the allocation, or choose parameters that change processes alone"
        ),
        "no_agent_on_node": "node {node} has no agent: chaos runs on it, or it is none of the hosts",
        "power_command_failed": "the power command `{command}` failed: {said}",
        "host_still_speaks": "the power command has ended, and within {seconds:g} s still something came from {hosts}",
        "still_running": "still running after {seconds:g} s: {processes}",
        "log_names_no_crash": "{process} ended with {ending}, but its log does not name {expected}",
        "ended_otherwise": "ended, but not by {expected}: {ends}",
        "no_data_worker": "rank {processes} has no DataLoader worker now: its loader has num_workers=0, or has ended",
        "no_such_data_worker": "rank {rank} has no DataLoader worker {number}: it has {workers}",
        "node_not_released": "the job did not release the node within {seconds:g} s of the notice: {who}",
        "threads_still_run": "other Python threads ran for {seconds:g} s: witnesses pulsed {pulses} times",
        "hang_not_watched": "{process} has ended, or has no watching thread: it does not hang",
        "stopped_not_hung": "{process} is stopped by a signal, which is not a hang",
        "started_again": "{process} was started again by the launcher of its node before that was killed",
        "too_little_memory": (
            "there are {free_mib} MiB of memory left on this machine, and {needed_mib} are needed to leak this "
            "much without danger to others: choose a smaller limit"
        ),
        "no_memory_group": "no memory control group can be made here for it: use -p by=rlimit, or in a file by: rlimit",
        "grown_too_little": "{name} ended ({ending}) when it had grown by only {grown_mib} MiB of {limit_mib}",
        "no_out_of_memory_kill": "{name} ended ({ending}), but its control group reports no out-of-memory kill",
        "not_by_allocation": "{name} ended, but not by a failed allocation: {ending}",
        "just_ended": "{target} has just ended",
        "too_little_room_in_group": (
            "{room_mib} MiB are left to all that is in the control group {group}, and {needed_mib} are needed: "
            "the group would reach its own limit first. Choose a smaller limit, or raise that of the group "
            "(--node-memory, if it is a node's container)"
        ),
        "limit_not_reached": "not ended by its memory limit within {seconds:g} s; it grew: {grown}",
        "not_still": "not still: {used_seconds} s of CPU time within {within_seconds:g} s",
        "no_sleep": "the delay started in no rank: 0 sleeps",
        "sleep_too_short": "a sleep was {slept_seconds:.3f} s only, not {asked_seconds:g} s",
        "steps_not_slower": "steps took {step_seconds:.3f} s, though a rank slept {slept_seconds:.3f} s in each",
        "sleep_within_noise": (
            "sleeps of {slept_seconds:.4f} s are within the noise: the {steps} steps before them usually vary by "
            "{noise_seconds:.4f} s"
        ),
        "no_two_steps": "no two steps in a row were committed, so it is not known how long they took",
        "committed_before_wake": (
            "step {step} was committed {early_seconds:.3f} s before the rank that slept in it woke up"
        ),
        "step_not_committed": "step {step} was not committed within {seconds:g} s",
        "too_few_steps": "only {steps} steps were committed since, of {needed_steps} needed to judge",
        "stopped_otherwise": (
            "{process} was stopped for {stopped_ratio:.0%} of the time ({samples} looks), not for "
            "{asked_ratio:.0%} as a factor of {factor:g} asks"
        ),
        "ended_before_measured": "{processes}: ended before its slowdown could be measured",
        "no_complete_checkpoint": (
            "there is no complete checkpoint in {folder} yet: choose a step some way after the first that writes one"
        ),
        "no_whole_checkpoint": "no checkpoint in {folder} is whole: {damaged}",
        "still_opens": "{path} can still be opened: the job has rewritten it, or removed what hid it",
        "still_taken_for_whole": "the runtime's reader still takes {checkpoint} for whole: {files} files",
        "refused_for_something_else": "the runtime's reader refuses {checkpoint} for something else: {refusal}",
        "no_such_unit": "{checkpoint} has no unit {unit}: it has {units}",
        "no_such_file": "{saved} has no file {unit}: it has {processes}",
        "rewritten_by_job": "{path} is not what the fault made of it: the job has rewritten it",
        "reader_too_slow": "the reader did not finish {checkpoint} in {seconds:g} s",
        "removed_by_job": "{path} was removed by the job just now: {error}",
        "gone_again": "{path} is not there any more: the job has removed it",
        "just_removed_by_job": "{path} was removed by the job just now",
        "cannot_damage": "cannot damage {path}: {error}",
        "cannot_hide": "cannot hide {folder}: {error}",
        "wide": "{folder}, where the script saves, holds more than checkpoints: {cure}",
        "working_folder": (
            "the script saves in {folder}, and rank {rank} works in it, so that it would not see a small disk "
            "over it: {cure}"
        ),
        "cannot_fill_disk": "cannot fill the disk of {folder}: {error}{hint}",
        "disk_not_full": "a write of 1 byte to {folder} {outcome}: its disk is not full",
        "no_save_failed": "the disk is full, but within {seconds:g} s no checkpoint failed and was followed by a step",
        "undone_before_seen": "{path} is gone: the fault was undone before its effect was seen",
        "shm_is_shared": (
            "/dev/shm of rank {ranks} is the one of this machine, and all processes share its {free_mib} MiB: say how "
            "much may be taken with -p size=1GiB, or in a file size: 1GiB; a container has one of its own"
        ),
        "shm_no_room": (
            "/dev/shm of rank {ranks} has {free_mib} MiB free, and {leave_mib} are to stay free: nothing can be taken"
        ),
        "shm_no_tmpfs": "/dev/shm of rank {rank} is not in memory: filling it would fill a disk",
        "shm_unreachable": "/dev/shm of rank {rank} cannot be reached: {error}",
        "shm_too_little_memory": (
            "there are {free_mib} MiB of memory left, and {needed_mib} are needed to fill /dev/shm without danger to "
            "others: choose a smaller size"
        ),
        "shm_not_filled": "/dev/shm cannot be filled: {error}",
        "shm_not_full": "/dev/shm is not full: {outcome}",
        "lookup_not_seen": "rank {rank} reported {told} instead of a lookup",
        "lookup_not_late": "the lookup of {name} in rank {rank} took {seconds:.3f} s, not {asked_seconds:g} s",
        "no_complete_snapshot": "node {node} keeps no complete snapshot yet: choose a later step",
        "unit_not_kept": "node {node} keeps nothing of {unit}: its ranks do not hold it",
        "memory_gone": "{what} is not there any more",
        "memory_not_opened": "{what} cannot be opened: {error}; {hint}",
        "snapshot_overwritten": "{part}: the next snapshot was begun there before its reader could be checked",
        "bits_unchanged": "{part}: the bits are as they were",
        "snapshot_begun_again": "node {node} begins another snapshot in the place of {step}'s",
        "nccl_past_network": (
            "NCCL goes over link {link} by {way}, which is {meaning}{more}: no rule of a network touches that. "
            "Start the job with {remedy} in its environment, and it goes through the network"
        ),
        "nccl_way_not_read": "which way NCCL takes cannot be read from {path}: {error}",
        "snapshot_process_without_agent": (
            "the snapshot process of node {node} has no agent: it has ended, or has not started"
        ),
        "ended_without_report": "rank {rank} has ended and reported nothing",
        "no_report": "rank {rank} reported nothing within {seconds:g} s",
        "ended_before_effect": "{place} ended before the effect began",
        "refused_inside": "{place}: {reason}",
        "run_ended_before_verified": "the run ended before its effect was verified",
        "ended_before_verified": "it was ended before its effect was verified",
        "not_started_by_run": "{process} was not started by this run",
        "not_connected": "{what} is not connected to this executor",
        "host_silent": "{host}: {loss}",
        "no_host_of_target": "no host of the run has a part of {target}",
        "no_job_on_host": "no job runs on {host} on which a fault could act",
        "fault_not_installed": "no fault {fault} is installed on {host}",
        "out_of_order": "incident {incident} is {state} on {host}: it is too early or too late for the order {order}",
        "executor_closed": "the executor of {host} takes no more orders",
        "order_differs": "order {order} came before, with another content",
        "order_too_old": "order {order} is too old: its answer is not kept",
        "order_cancelled": "order {order} was cancelled",
        "answer_too_long": "the answer has {bytes} bytes, more than {limit}",
        "order_too_long": "the order has {bytes} bytes, more than {limit}",
        "fault_broke_down": "the fault broke down: {error}",
        "not_in_network": (
            "rank {rank} (pid {pid}) is not in the network made for it, so faults cannot reach it. A rank moves "
            "there as its Python starts, and must have RANK in its environment by then, as torchrun sets it"
        ),
        "rank_gone": "rank {rank} is not there",
        "network_not_found": "the network of rank {rank} cannot be found: {error}",
        "link_within_host": (
            "there is no link {link}: both ends are on one host, and talk over its loopback; choose ranks of two hosts"
        ),
        "no_connections": (
            "link {link}: no process of the run on this host has a TCP connection to {peers}: there is nothing to "
            "change. Traffic by RDMA or NVLink has none"
        ),
        "delay_needs_net_admin": (
            "a delay, jitter or loss of packets needs CAP_NET_ADMIN in the network of the hosts; without it, the "
            "links' connections can have less bandwidth"
        ),
        "connections_forbidden": Made(
            _connections_forbidden,
            "the connections of other processes may not be changed on this host (pidfd_getfd: {error}): Yama's "
            "ptrace_scope is {ptrace_scope}; ...",
        ),
        "too_little_traffic": (
            "link {link}: the job sent only {bytes} bytes over it in {seconds:g} s, too few to measure a rate"
        ),
        "no_link_between": "there is no link {link}: both ends are in the network of {near}",
    },
    NOT_FIRED,
    _NO_PLACE,
    NOT_UNDONE,
)
