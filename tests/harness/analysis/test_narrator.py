from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.plain_text import is_plain
from harness.analysis import words
from harness.analysis.narrator import Narrator
from mecefo_runtime.system.events import Event
from tests.harness import synthetic

pytestmark = pytest.mark.unit


def event(kind, *, rank=None, job="main", **fields):
    return Event(
        kind=kind, source="x", time_seconds=1.0, monotonic_seconds=1.0, pid=1, rank=rank, job=job, fields=fields
    )


def test_names():
    assert words.name_ranks([]) == ""
    assert words.name_ranks([3]) == "rank 3"
    assert words.name_ranks([5, 4]) == "ranks 4 and 5"
    assert words.name_ranks([1, 4, 9]) == "ranks 1, 4 and 9"
    assert words.name_ranks(range(16)) == "ranks 0 to 15"
    assert words.name_nodes([2]) == "node 2"


def test_counts():
    assert words.count(1, "process") == "1 process"
    assert words.count(3, "process") == "3 processes"
    assert words.count(0, "rank") == "0 ranks"
    assert words.count(2, "fault not undone") == "2 faults not undone"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0 ms"),
        (0.0352, "35 ms"),
        (0.0996, "0.10 s"),
        (1.239, "1.24 s"),
        (9.996, "10.0 s"),
        (119.96, "2 min 00 s"),
        (245, "4 min 05 s"),
        (-0.5, "-0.50 s"),
    ],
)
def test_durations(seconds, text):
    assert words.name_seconds(seconds) == text


def test_sizes():
    assert [words.name_bytes(n) for n in (12, 1536, 3 << 20, 5 << 30)] == ["12 bytes", "1.5 KiB", "3.0 MiB", "5.0 GiB"]


def test_targets():
    assert words.target_text("node=2") == "node 2"
    assert words.target_text("stage=1,replica=0") == "stage 1, replica 0"
    assert words.target_text("role=coordinator") == "the coordinator"


def test_exits():
    assert words.exit_text(1) == "exit code 1"
    assert words.exit_text(-9) == "killed by SIGKILL"
    assert words.exit_text(-200) == "killed by signal 200"


def test_evidence_of_any_shape_is_one_line():
    assert words.evidence_text("gone") == "gone"
    assert words.evidence_text({"exit_code": -9, "alive": False}) == "exit code: -9, alive: no"
    assert words.evidence_text([1, 2.5]) == "1, 2.5"
    assert words.evidence_text(None) == ""


@given(st.text())
def test_one_line_lets_nothing_through_that_steers(text):
    assert is_plain(words.one_line(text))


def test_most_events_are_not_worth_a_line():
    narrator = Narrator()
    silent = {e.kind for e in synthetic.run() if narrator.tell(e) is None}
    assert silent == {
        "run_started",
        "rank_started",
        "rank_finished",
        "step_committed",
        "isolated",
        "released",
        "rejoin_requested",
        "undone",
        "residue",
        "run_ended",
        "layout",
    }


def test_nodes_that_are_containers_are_told_as_they_come_up():
    narrator = Narrator()

    def ready(container, attempt=1):
        fields = {"container": container, "container_attempt": attempt, "start_seconds": 9.14}
        return narrator.tell(event("container_ready", **fields))

    begin = narrator.tell(event("nodes_starting", num_nodes=2, image="mecefo-chaos"))
    assert begin == "starting 2 nodes: containers of the image mecefo-chaos"
    assert ready("node-1") == "node 1 is up, 1 of 2: its container was ready after 9.14 s"
    assert ready("coordinator") is None and ready("links-of-node-0") is None
    assert ready("node-0") == "node 0 is up, 2 of 2: its container was ready after 9.14 s"
    assert ready("node-1", attempt=2) == "node 1 is up: its container was ready after 9.14 s"


class TestProcessExits:
    exited = event("process_exited", role="rank", exited_rank=3, exited_pid=7, exit=-11)

    def test_an_unexpected_end_is_told(self):
        assert Narrator().tell(self.exited) == "process of rank 3 ended unexpectedly: killed by SIGSEGV"
        supervisor = event("process_exited", role="supervisor", exited_node=1, exited_pid=8, exit=1)
        assert Narrator().tell(supervisor) == "process of supervisor of node 1 ended unexpectedly: exit code 1"
        snapshots = event("process_exited", role="snapshots", exited_node=1, exited_pid=8, exit=-9)
        assert Narrator().tell(snapshots) == "snapshot process of node 1 ended unexpectedly: killed by SIGKILL"

    def test_an_orderly_one_is_not(self):
        assert Narrator().tell(event("process_exited", role="rank", exited_rank=3, exited_pid=7, exit=0)) is None

    def test_ranks_that_end_to_be_started_again_are_not(self):
        narrator = Narrator()
        narrator.tell(event("restarting"))
        assert narrator.tell(event("process_exited", role="rank", exited_rank=3, exited_pid=7, exit=1)) is None
        narrator.tell(event("restart_started", ranks=[0, 1]))
        assert narrator.tell(self.exited) is not None

    def test_those_of_a_fault_are_told_by_the_fault(self):
        narrator = Narrator()
        narrator.tell(event("held", incident=0, phase="backward", held_rank=4))
        assert narrator.tell(self.exited) is None, "before its pid was announced"
        narrator.tell(
            event("injected", incident=0, fault="kill-node", is_loss=True, target="node=2", processes=[{"pid": 7}])
        )
        narrator.tell(event("verified", incident=0, evidence="gone"))
        assert narrator.tell(self.exited) is None, "announced as the fault's"
        assert narrator.tell(event("process_exited", role="rank", exited_pid=8, exit=-9)) is not None

    @pytest.mark.parametrize(("by", "words"), [("parameters", "with 34 steps committed"), ("nobody", "is not known")])
    def test_the_number_of_steps_is_told_where_it_is_known(self, by, words):
        narrator = Narrator()
        for number in (1, 2):
            narrator.tell(event("attempt_started", attempt_number=number, world_size=2))
            # Of the first start nobody need know it.
            narrator.tell(event("steps_counted", count_kept_by="nobody" if number == 1 else by))
        assert words in (narrator.tell(event("job_ended", outcome="completed", steps_committed=34)) or "")

    @pytest.mark.parametrize("kind", ["job_failed", "job_ended", "halted", "interrupted"])
    def test_the_end_of_the_job_ends_its_processes(self, kind):
        narrator = Narrator()
        narrator.tell(event(kind))
        assert narrator.tell(self.exited) is None

    def test_so_does_its_last_step_but_not_its_baseline_s(self):
        narrator = Narrator()
        for job in ("main", "twin"):
            narrator.tell(event("job_started", job=job, steps=10, num_ranks=8))
        narrator.tell(replace(event("step_committed", job="twin"), step=10))
        assert narrator.tell(self.exited) is not None
        narrator.tell(replace(event("step_committed"), step=9))
        assert narrator.tell(self.exited) is not None
        narrator.tell(replace(event("step_committed"), step=10))
        assert narrator.tell(self.exited) is None


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("kill-process", "rank 2 killed, process exit of rank 2 (1 process) confirmed"),
        ("raise", "rank 2 ended, process exit of rank 2 (1 process) confirmed"),
    ],
)
def test_who_ends_of_itself_was_not_killed(fault, said):
    narrator = Narrator()
    affected = {"ranks": [2], "processes": [{"pid": 7, "rank": 2}], "target": "rank=2"}
    narrator.tell(event("injected", incident=0, fault=fault, is_loss=True, **affected))
    assert narrator.tell(event("verified", incident=0, evidence="gone")) == f"verified: {said}"


@pytest.mark.parametrize(
    ("nodes", "ranks", "said"),
    [
        ([1], [2, 3], "node 1 with ranks 2 and 3 restarts"),
        ([], [2], "rank 2 restarts"),
        ([], [0, 3], "ranks 0 and 3 restart"),
    ],
)
def test_a_repair_of_one_or_of_several(nodes, ranks, said):
    told = Narrator().tell(event("repair_started", incident=0, nodes=nodes, ranks=ranks))
    assert told == f"repair: {said}"


def test_damaged_state_is_told_with_both_of_its_ends():
    told = Narrator().tell(replace(event("transfer_damaged", epoch=2, unit="layer.3", source_rank=0), rank=5))
    assert told == "the state of layer 3 from rank 0 reached rank 5 damaged"


def test_steps_that_go_on_being_rejected_are_told_less_and_less():
    narrator = Narrator()
    found = [
        narrator.tell(replace(event("step_unfit", reason="not finite", verdict=verdict), step=step))
        for step in range(5, 25)
        for verdict in ("repeat", "skip")
    ]
    assert [number for number, sentence in enumerate(found, start=1) if sentence] == [1, 2, 3, 4, 8, 16, 32]
    assert str(found[7]).endswith("it is skipped; 8 times in a row")
    assert narrator.tell(replace(event("step_unfit", reason="not finite", verdict="repeat"), step=40)) is not None


@pytest.mark.parametrize(
    ("fault", "evidence", "sentence"),
    [
        (
            "pause-process",
            {"undone": "no thread of them is stopped", "pids": [7], "by": "chaos"},
            ": no thread of them is stopped",
        ),
        ("gpu-hang", {"undone": "nothing to undo", "processes": 1}, ""),
        ("pause-process", None, ""),
        ("pause-process", {"rules": 2}, ": rules: 2"),
    ],
)
def test_the_end_of_a_fault_is_told_without_what_is_for_the_log(fault, evidence, sentence):
    narrator = Narrator()
    narrator.tell(event("injected", incident=0, fault=fault, goes_on=True, target="rank=1"))
    assert narrator.tell(event("undone", incident=0, evidence=evidence)) == f"{fault} undone{sentence}"


def test_what_needs_a_person_says_where_to_look():
    narrator = Narrator()
    assert "ledger.jsonl" in str(narrator.tell(event("undo_failed", incident=0, reason="busy")))
    left = str(narrator.tell(event("residue", processes=[1, 2], undo_pending=[{}])))
    assert left.startswith("left behind: 2 processes, 1 fault not undone.")
    left = str(narrator.tell(event("residue", processes=[], undo_pending=[], left=[{}, {}])))
    assert left.startswith("left behind: 2 things.")


def test_what_gloo_says_is_told_without_its_guesses():
    error = (
        "[/__w/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:62861. "
        "This is typically caused by a remote worker crashing. Check the logs of the remote worker."
    )
    told = Narrator().tell(event("warning", message=f"rank 3 broke off: {error}"))
    assert told == "warning: rank 3 broke off: Connection closed by peer [127.0.0.1]:62861."


def test_the_end_of_a_run_leaves_the_reason_to_the_verdict_and_to_its_event():
    assert Narrator().tell(event("run_ended", reason="failed", message="disk full")) == "run failed"
    for reason in ("completed", "halted", "interrupted", "aborted"):
        assert Narrator().tell(event("run_ended", reason=reason, message="x")) is None


class TestCommands:
    """What is said of an external job."""

    def test_whom_its_launcher_blames(self):
        named = event("culprit_named", ranks=[1], how="torchrun")
        assert Narrator().tell(named) == "torchrun names rank 1 as the first to fail"

    def test_what_ends_after_its_own_process_is_no_surprise(self):
        narrator = Narrator()
        rank = event("process_exited", role="rank", exited_rank=3, exited_pid=7, exit=-9)
        assert narrator.tell(rank) is not None
        narrator.tell(event("process_exited", role="launcher", exited_pid=6, exit=-9))
        assert narrator.tell(rank) is None


def test_ranks_that_end_to_be_started_again_end_as_they_should():
    narrator = Narrator()
    narrator.tell(event("restarting"))
    exited = event("process_exited", role="rank", exited_rank=3, exited_pid=11, exit=1)
    assert narrator.tell(exited) is None
    narrator.tell(event("restart_started", ranks=[0, 1]))
    assert narrator.tell(exited) == "process of rank 3 ended unexpectedly: exit code 1"


def test_one_rank_is_told_as_one():
    assert (
        Narrator()
        .tell(event("detected", lost=[7], how="connection"))
        .endswith("rank 7 detected: its connections closed")
    )
    assert (
        Narrator()
        .tell(event("detected", lost=[6, 7], how="connection"))
        .endswith("7 detected: their connections closed")
    )


def test_who_is_held_in_the_middle_of_a_snapshot():
    told = Narrator().tell(replace(event("held", incident=0, phase="snapshot", held_rank=2), step=7))
    assert told == "rank 2 held in the middle of copying the snapshot of step 7"
    told = Narrator().tell(replace(event("held", incident=0, phase="encode", held_node=1), step=7))
    assert told == "node 1's snapshot process held while it encodes the snapshot of step 7"
