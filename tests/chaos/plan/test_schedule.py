import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.errors import UsageError
from chaos.experiment.reading import from_mapping
from chaos.language.target import ResolvedTarget
from chaos.language.trigger import Duration, Trigger
from chaos.plan.schedule import DEFAULT_KILL_REPAIR, make_plan
from mecefo_runtime.system.json_values import to_json
from tests.chaos.fake_faults import REGISTRY, STRATEGIES
from tests.examples import FEW

pytestmark = pytest.mark.unit


def make(raw, capabilities=None, kinds=tuple(REGISTRY)):
    """The plan of an experiment that is said in plain values."""
    registry = {kind: REGISTRY[kind] for kind in kinds}
    experiment = from_mapping({"name": "x", **raw}, registry=registry, strategies=STRATEGIES)
    return make_plan(experiment, experiment.cluster(), registry=registry, capabilities=capabilities)


def whole(*faults, seed=0, **job):
    return make({"seed": seed, "job": job, "faults": [{"kind": "kill-node", **fault} for fault in faults]})


def plan(*faults, seed=0, **job):
    return whole(*faults, seed=seed, **job).incidents


def kill(at, on="random", repair=None, kind="kill-node"):
    fault = {"kind": kind, "on": on, "at": at if isinstance(at, str) else f"step={at}"}
    return fault if repair is None else {**fault, "repair": repair}


def refusal(*faults, **job):
    with pytest.raises(UsageError) as refused:
        plan(*faults, **job)
    return refused.value


class TestPlan:
    def test_an_incident_says_all(self):
        (incident,) = plan(kill("step=100,phase=backward", "rank=5", "60steps"))
        assert incident.target == ResolvedTarget((4, 5), (2,))
        assert incident.trigger == Trigger(100, "backward")
        assert str(incident) == "incident 0: kill-node on rank=5 at step=100,phase=backward, repaired after 60steps"
        assert to_json(incident.planned()) == {
            "incident": 0,
            "fault": "kill-node",
            "parameters": {},
            "target": "rank=5",
            "ranks": [4, 5],
            "nodes": [2],
            "links": [],
            "role": None,
            "step": 100,
            "phase": "backward",
            "at_seconds": None,
            "lifetime_steps": None,
            "lifetime_seconds": None,
            "repair_steps": 60,
            "repair_seconds": None,
            "retrigger": "once",
            "draw": 0,
            "is_optional": False,
        }

    def test_at_a_time_there_is_no_phase(self):
        (incident,) = plan(kill("time=1.5s", "node=1", "10s"))
        said = to_json(incident.planned())
        assert json.loads(json.dumps(said)) == said
        assert {key: said[key] for key in ("step", "phase", "at_seconds", "repair_steps", "repair_seconds")} == {
            "step": None,
            "phase": None,
            "at_seconds": 1.5,
            "repair_steps": None,
            "repair_seconds": 10.0,
        }

    def test_parameters_and_order_are_the_experiments(self):
        slow = {"kind": "slow-link", "on": "rank=3", "at": "step=1", "delay": "5ms"}
        incidents = plan(kill(9, "random"), slow, kill(5, "node=1"))
        assert [(incident.incident, incident.fault) for incident in incidents] == [
            (0, "kill-node"),
            (1, "slow-link"),
            (2, "kill-node"),
        ]
        assert incidents[1].parameters == {"delay": "5ms", "loss_ratio": 0.0}

    @pytest.mark.parametrize(
        ("fault", "repair"),
        [
            (kill(5, "node=1"), DEFAULT_KILL_REPAIR),
            (kill(5, "node=1", "none"), None),
            (kill(5, "node=1", "3s"), Duration(seconds=3.0)),
            (kill(5, "role=coordinator"), None),
            ({"kind": "slow-link", "on": "rank=3", "at": "step=1", "delay": "5ms"}, None),
        ],
    )
    def test_repair(self, fault, repair):
        assert plan(fault)[0].repair == repair

    def test_the_default_target_is_drawn_and_named(self):
        (incident,) = plan({"at": "step=5"})
        assert incident.target_text == f"node={incident.target.nodes[0]}"
        (incident,) = plan({"at": "step=5", "kind": "kill-process"})
        assert incident.target_text == f"rank={incident.target.ranks[0]}"
        assert incident.target.nodes == ()

    def test_no_faults_no_incidents(self):
        assert plan() == ()


class TestDraws:
    @FEW
    @given(st.integers(0, 2**63 - 1))
    def test_the_same_seed_gives_the_same_incidents(self, seed):
        faults = (kill(5), kill(100, "random:2"), kill("time=3s", kind="kill-process"))
        assert plan(*faults, seed=seed) == plan(*faults, seed=seed)

    def test_another_seed_gives_another_target(self):
        assert {plan(kill(5), seed=seed)[0].target.nodes for seed in range(40)} == {(0,), (1,), (2,), (3,)}

    def test_incidents_of_one_run_are_drawn_apart(self):
        pairs = {tuple(i.target.nodes for i in plan(kill(5), kill(100), seed=seed)) for seed in range(40)}
        assert len({first == second for first, second in pairs}) == 2

    def test_the_same_in_another_process(self):
        # hash() of a text differs from process to process; a schedule must not.
        code = (
            "from tests.chaos.plan.test_schedule import kill, plan;"
            "print([plan(kill(5), kill(100), seed=s)[1].target.nodes for s in range(12)])"
        )
        environment = {"PYTHONHASHSEED": "12345", "PYTHONPATH": ":".join(filter(None, sys.path))}
        other = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
        )
        assert other.stdout.strip() == str([plan(kill(5), kill(100), seed=s)[1].target.nodes for s in range(12)])

    def test_a_known_draw(self):
        # Pinned: a published seed must go on meaning the same failure.
        assert [plan(kill(5), seed=seed)[0].target.nodes[0] for seed in range(8)] == [3, 0, 1, 1, 0, 2, 3, 1]

    def test_a_fault_that_is_added_changes_none_of_the_others(self):
        for seed in range(20):
            assert plan(kill(5), kill(100), seed=seed) == plan(kill(5), kill(100), kill(200), seed=seed)[:2]

    @given(st.integers(0, 2**32), st.sampled_from(["none", "60steps"]))
    def test_draws_go_out_of_the_way_of_what_is_down(self, seed, repair):
        early, named, late = plan(kill(50, repair=repair), kill(80, "node=2"), kill(90), seed=seed)
        assert len({early.target.nodes, named.target.nodes, late.target.nodes}) == 3

    def test_what_is_repaired_can_be_drawn_again(self):
        pairs = [plan(kill(10, repair="5steps"), kill(16), seed=seed) for seed in range(40)]
        assert any(first.target == second.target for first, second in pairs)


class TestRefusals:
    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (kill(100, "node=2"), kill(120, "node=2")),
            (kill(100, "node=2"), kill(140, "node=2")),
            (kill(100, "node=2", "none"), kill(559, "node=2")),
            (kill(100, "node=2"), kill(120, "rank=5", kind="kill-process")),
            (kill(100, "node=2"), kill(100, "node=2")),
            (kill(100, "rank=5", kind="kill-process"), kill(120, "rank=5", kind="kill-process")),
            (kill("step=100,phase=forward", "node=2", "3s"), kill("step=100,phase=forward", "node=2", "3s")),
        ],
    )
    def test_killing_what_is_still_down(self, first, second):
        error = refusal(first, second)
        assert error.key == "faults[1]"
        assert "but faults[0] took it down at step=100" in error.message

    def test_names_the_later_one_whatever_the_order_in_the_file(self):
        assert refusal(kill(120, "node=2"), kill(100, "node=2")).key == "faults[0]"

    @pytest.mark.parametrize(
        "faults",
        [
            (kill(100, "node=2"), kill(141, "node=2")),
            (kill(100, "node=2", "10s"), kill(120, "node=2")),
            (kill("time=1s", "node=2"), kill(120, "node=2")),
            (kill(100, "rank=5", kind="kill-process"), kill(120, "node=2")),
            (kill(100, "rank=4", kind="kill-process"), kill(120, "rank=5", kind="kill-process")),
            (kill(100, "role=coordinator"), kill(101, "role=coordinator")),
        ],
    )
    def test_what_can_be(self, faults):
        assert len(plan(*faults)) == 2

    @pytest.mark.parametrize(
        ("faults", "job", "key"),
        [
            ([kill(5, "node=0")], {"nodes": 1}, "faults[0]"),
            ([kill("time=1s", "node=0")], {"nodes": 1}, "faults[0]"),
            ([kill(5, "random:4")], {}, "faults[0]"),
            ([kill(5, "stage=0")], {}, "faults[0]"),
            ([kill(5, "random:3"), kill(30)], {}, "faults[1]"),
            ([kill(5 + i, f"node={i}", "none") for i in range(4)], {}, "faults[3]"),
            ([kill(5, "random:8", kind="kill-process")], {}, "faults[0]"),
        ],
    )
    def test_killing_everybody(self, faults, job, key):
        error = refusal(*faults, **job)
        assert error.key == key
        assert "ranks alive" in error.message

    def test_everybody_but_one_after_another_is_fine(self):
        assert len(plan(*[kill(5 + 50 * i, f"node={i}") for i in range(4)])) == 4

    def test_nobody_left_to_draw(self):
        error = refusal(kill(5, "random:3", "none"), kill(50, "random:2"))
        assert error.key == "faults[1].on"
        assert error.message == "random:2 asks for 2, but only 1 nodes can be drawn (6 of 8 ranks are down then)"


class TestAgainAndAgain:
    def test_every_so_many_steps(self):
        incidents = plan({"every": "150steps", "on": "node=1"})
        assert [(i.incident, i.trigger.step, i.is_optional) for i in incidents] == [
            (0, 150, False),
            (1, 300, False),
            (2, 450, False),
        ]

    def test_what_is_drawn_in_time_may_come_after_the_jobs_end(self):
        incidents = plan({"rate": "1/min", "within": "5min"}, {"every": "100s", "kind": "kill-process"}, seed=3)
        assert len(incidents) > 5
        assert all(i.is_optional and i.trigger.at_seconds <= 600 for i in incidents)
        assert str(incidents[-1]).endswith("at time=600s, repaired after 40steps, if the job is still running then")

    def test_each_firing_draws_its_own_target(self):
        targets = {i.target.nodes for i in plan({"every": "50steps"})}
        assert len(targets) > 1

    def test_the_first_firing_draws_as_a_fault_that_fires_once(self):
        for seed in range(10):
            once, *_ = plan(kill(100), seed=seed)
            assert plan({"at": "step=100", "every": "200steps"}, seed=seed)[0] == once

    @FEW
    @given(st.integers(0, 2**32))
    def test_nothing_is_drawn_that_is_down_by_then(self, seed):
        down = {}
        for incident in plan({"rate": "3/100steps", "repair": "30steps", "kind": "kill-process"}, seed=seed):
            (rank,) = incident.target.ranks
            assert incident.trigger.step > down.get(rank, 0)
            down[rank] = incident.trigger.step + 30

    def test_a_rate_leaves_out_what_cannot_be_and_says_so(self):
        made = whole({"rate": "10/100steps", "repair": "none", "kind": "kill-process"})
        assert len(made.incidents) == 7
        drawn, left_out = made.notes
        assert "faults[0]: rate 10/100steps makes" in drawn
        assert "firings are left out, since they cannot be: kill-process on rank=" in left_out
        assert "leaves none of the job's 8 ranks alive" in left_out

    def test_a_period_leaves_nothing_out(self):
        error = refusal({"every": "10steps", "on": "node=1"})
        assert "but faults[0] took it down at step=10 until 40steps later" in error.message

    def test_too_many(self):
        rare = {"rate": "1/step", "kind": "slow-rank", "count": 600}
        error = refusal(rare, rare, steps=10_000)
        assert (error.key, error.message) == ("faults[1]", "more than 1000 incidents: fire fewer")
        error = refusal({"every": "1steps"}, steps=10_000)
        assert error.key == "faults[0].every"

    def test_the_default_horizon_is_said(self):
        (note,) = whole({"rate": "0.1/min"}, seed=1).notes
        assert note.endswith("firings in the first 600s (say otherwise with within)")
        (note,) = whole({"rate": "0.1/min", "within": "2min"}, seed=1).notes
        assert note.endswith("firings in the first 120s")


@st.composite
def random_faults(draw):
    """A fault whose target is drawn, in any of the ways in which it can fire."""
    kind = draw(st.sampled_from(["kill-node", "kill-process", "slow-rank", "drop-link"]))
    when = draw(
        st.sampled_from(
            [
                {"at": "step=50"},
                {"at": "step=200,phase=reduce"},
                {"at": "phase=regroup"},
                {"at": "time=5s"},
                {"rate": "1/100steps"},
                {"rate": "0.3/min", "within": "3min"},
                {"every": "100steps", "count": 2},
            ]
        )
    )
    repair = {"repair": draw(st.sampled_from(["5steps", "50steps", "3s"]))} if kind.startswith("kill") else {}
    return {"kind": kind, **when, **repair}


class TestStability:
    """What makes a seed worth publishing."""

    def test_a_drawn_fault_at_the_end_changes_none_that_fire_after_it(self):
        for seed in range(40):
            assert plan(kill(100), seed=seed) == plan(kill(100), kill(90), seed=seed)[:1]

    @given(st.lists(random_faults(), max_size=4), random_faults(), st.integers(0, 2**32))
    def test_a_drawn_fault_at_the_end_changes_none_of_the_others(self, faults, added, seed):
        try:
            before = plan(*faults, seed=seed)
            after = plan(*faults, added, seed=seed)
        except UsageError:
            # Nobody left to draw; that it is refused the same way each time is another test's.
            return
        assert after[: len(before)] == before

    @given(st.lists(random_faults(), max_size=4), st.integers(0, 2**32))
    def test_the_same_seed_the_same_plan_and_it_can_be_written_down(self, faults, seed):
        def outcome():
            try:
                return to_json(whole(*faults, seed=seed))
            except UsageError as error:
                return str(error)

        first = outcome()
        assert first == outcome()
        assert json.loads(json.dumps(first)) == first

    @FEW
    @given(st.integers(0, 2**32), st.integers(1, 30))
    def test_a_failure_more_of_a_profile_adds_to_the_others(self, seed, num_failures):
        def failures(count):
            made = make({"profile": {"name": "llama3", "failures": count}, "seed": seed, "job": {"steps": 10**6}})
            return {(i.trigger.step, i.fault, i.target_text) for i in made.incidents}

        fewer, more = failures(num_failures), failures(num_failures + 1)
        # In a million steps next to nothing meets; where it does, a draw goes out of the other's way.
        assert len(fewer - more) <= 1
        assert len(more) in (len(fewer), len(fewer) + 1)


class TestProfile:
    def test_its_failures_follow_the_faults(self):
        made = make({"faults": [kill(5, "node=1")], "profile": "llama3:6", "seed": 2})
        assert [i.incident for i in made.incidents] == list(range(len(made.incidents)))
        assert made.incidents[0].target_text == "node=1"
        rest = made.incidents[1:]
        assert [i.trigger.step for i in rest] == sorted(i.trigger.step for i in rest)
        assert all(i.is_optional for i in rest)

    def test_says_what_it_is_and_is_not(self):
        made = make({"profile": "llama3:6"})
        source, left_out, compression = made.notes
        assert "419 unexpected interruptions" in source
        assert left_out.startswith(
            "profile llama3: left out, 30.1% by counts: process crash 54: segfault is not installed"
        )
        assert compression == (
            "time compression: 8 ranks fail once in 264 days at the rate of llama3; here 6 failures in 560 steps"
        )
        assert made.left_out_ratio == (54 + 42 + 24 + 6) / 419
        assert to_json(made)["time_compression"]["num_failures"] == 6

    def test_what_the_backend_can_do_decides(self):
        kinds = {i.fault for i in make({"profile": "llama3:60", "job": {"steps": 10**5}}, {"links", "root"}).incidents}
        assert kinds == {"kill-process", "kill-node", "drop-link", "slow-rank"}

    def test_what_would_last_for_ever_ends(self):
        made = make({"profile": "llama3:200", "job": {"steps": 10**6}}, {"links", "root"})
        lifetimes = {i.fault: i.lifetime for i in made.incidents if not i.is_loss}
        assert lifetimes == {"drop-link": Duration(steps=40), "slow-rank": Duration(steps=20)}

    def test_of_slow_failures_the_source_is_not_hidden(self):
        made = make({"profile": "failslow"})
        assert "second-hand figures" in made.notes[0]
        assert made.time_compression is None
        assert {i.fault for i in made.incidents} == {"slow-rank"}

    def test_with_nothing_in_it_is_refused(self):
        with pytest.raises(UsageError, match="the job can have none of the failures of failslow") as refused:
            make({"profile": "failslow"}, kinds=("kill-node",))
        assert refused.value.key == "profile"


class TestLifetimes:
    def test_said_or_the_kinds_own(self):
        faults = [{"kind": "slow-rank", "on": "rank=1", "at": "step=5", **own} for own in ({}, {"for": "3s"})]
        assert [i.lifetime for i in plan(*faults)] == [Duration(steps=20), Duration(seconds=3.0)]
        (forever,) = plan({"kind": "drop-link", "at": "step=5", "on": "link=2-5"})
        assert (forever.lifetime, forever.target.links, forever.target_text) == (None, ((2, 5),), "link=2-5")
        said = to_json(plan(faults[1])[0].planned())
        assert (said["lifetime_seconds"], said["lifetime_steps"], said["repair_steps"]) == (3.0, None, None)

    def test_text(self):
        (incident,) = plan({"kind": "slow-rank", "on": "rank=1", "at": "step=5", "for": "3s", "retrigger": 2})
        assert str(incident) == "incident 0: slow-rank on rank=1 at step=5, for 3s, at 2 attempts"
        (incident,) = plan({"kind": "tear-checkpoint", "at": "step=5", "retrigger": "every-attempt"})
        assert str(incident) == "incident 0: tear-checkpoint on the newest checkpoint at step=5, at every attempt"


class TestTogether:
    def test_several_at_one_step(self):
        incidents = plan(kill(50, "node=1"), kill(50, "node=2"), kill(50), {"kind": "slow-rank", "at": "step=50"})
        affected = [rank for i in incidents for rank in i.target.ranks]
        assert len(affected) == len(set(affected)) == 7

    def test_several_nodes_in_one_incident(self):
        (incident,) = plan(kill(50, "node=1+2"))
        assert (incident.target.nodes, incident.target.ranks, incident.target_text) == (
            (1, 2),
            (2, 3, 4, 5),
            "node=1+2",
        )
        (incident,) = plan(kill(50, "rack=1"), nodes_per_rack=2)
        assert (incident.target.nodes, incident.target_text) == ((2, 3), "rack=1")
        (incident,) = plan(kill(50, "random:2"), seed=1)
        assert incident.target_text == f"node={incident.target.nodes[0]}+{incident.target.nodes[1]}"

    @pytest.mark.parametrize(
        ("fault", "on"),
        [("slow-rank", "rank=2"), ("slow-rank", "node=1"), ("drop-link", "link=2-5"), ("slow-rank", "rank=2+3")],
    )
    def test_what_is_down_is_not_affected(self, fault, on):
        affected = {"kind": fault, "on": on, "at": "step=60"}
        assert "but faults[0] took it down at step=50" in refusal(kill(50, "node=1"), affected).message
        assert len(plan(kill(50, "node=1"), {**affected, "at": "step=91"})) == 2

    def test_what_is_slow_can_be_killed(self):
        assert len(plan({"kind": "slow-rank", "on": "rank=2", "at": "step=40"}, kill(50, "node=1"))) == 2

    def test_draws_do_not_avoid_what_is_only_slow(self):
        slow = {"kind": "slow-rank", "on": "rank=2", "at": "step=40", "for": "100steps"}
        drawn = {plan(slow, kill(50, kind="kill-process"), seed=seed)[1].target.ranks for seed in range(60)}
        assert (2,) in drawn
        slowed = {"kind": "slow-rank", "at": "step=40", "for": "100steps"}
        drawn = {plan(kill(50, "node=1"), slowed, seed=seed)[1].target.ranks for seed in range(60)}
        assert (2,) in drawn, "it is slow before it is killed"

    def test_regroups_come_when_they_come(self):
        (first, second) = plan(kill(50, "node=1"), kill("phase=regroup", "node=2"))
        assert (second.trigger.step, to_json(second.planned())["phase"]) == (None, "regroup")
        assert str(second) == "incident 1: kill-node on node=2 at phase=regroup, repaired after 40steps"
        assert to_json(first.planned())["phase"] == "forward"

    def test_times_are_compared_with_times(self):
        assert "took it down at time=1s" in refusal(kill("time=1s", "node=1", "9s"), kill("time=5s", "node=1")).message
        assert len(plan(kill("time=1s", "node=1", "3s"), kill("time=5s", "node=1"))) == 2


class TestLimits:
    @pytest.mark.parametrize(
        ("limits", "faults", "violation"),
        [
            ({"max_nodes": 1}, [kill(50, "node=1"), kill(60, "node=2")], "2 nodes would be affected at once"),
            ({"max_ranks": 3}, [kill(50, "node=1+2")], "4 ranks would be affected at once, more than max_ranks 3"),
            ({"min_healthy": "50%"}, [kill(50, "node=1+2"), kill(60, "rank=0", kind="kill-process")], "3 of 8 ranks"),
            (
                {"max_ranks": 1},
                [{"kind": "slow-rank", "on": "rank=1", "at": "step=5"}, kill(25, "rank=2", kind="kill-process")],
                "2 ranks would be",
            ),
            ({"max_ranks": 1}, [{"kind": "drop-link", "on": "link=2-5", "at": "step=5"}], "2 ranks would be"),
            ({"max_nodes": 1}, [kill("phase=regroup", "node=1+2")], "2 nodes would be"),
        ],
    )
    def test_hold_at_every_moment(self, limits, faults, violation):
        with pytest.raises(UsageError) as refused:
            make({"limits": limits, "faults": faults})
        assert violation in refused.value.message
        assert refused.value.key == f"faults[{len(faults) - 1}]"

    def test_count_what_is_in_force_at_once(self):
        slow = {"kind": "slow-rank", "on": "rank=1", "at": "step=5", "for": "10steps"}
        faults = [slow, kill(16, "rank=2", kind="kill-process"), kill(60, "rank=3", kind="kill-process")]
        assert len(make({"limits": {"max_ranks": 1}, "faults": faults}).incidents) == 3

    def test_a_profile_keeps_within_them(self):
        made = make({"limits": {"max_nodes": 1}, "profile": "llama3:100", "seed": 4})
        assert any("are left out, since they cannot be" in note for note in made.notes)
        down = {}
        for incident in made.incidents:
            if incident.is_loss and incident.target.ranks:
                affected = {node for node, until in down.items() if until >= incident.trigger.step}
                affected |= {rank // 2 for rank in incident.target.ranks}
                assert len(affected) == 1
                down |= dict.fromkeys((rank // 2 for rank in incident.target.ranks), incident.trigger.step + 40)
