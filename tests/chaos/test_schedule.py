import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.errors import UsageError
from chaos.experiment import from_mapping
from chaos.schedule import DEFAULT_KILL_REPAIR, plan_incidents
from chaos.target import ResolvedTarget
from chaos.trigger import Duration, Trigger
from tests.chaos.fake_faults import REGISTRY, STRATEGIES

pytestmark = pytest.mark.unit


def plan(*faults, seed=0, **job):
    raw = {"name": "x", "seed": seed, "job": job, "faults": [{"kind": "kill-node", **fault} for fault in faults]}
    experiment = from_mapping(raw, registry=REGISTRY, strategies=STRATEGIES)
    return plan_incidents(experiment, experiment.cluster(), registry=REGISTRY)


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
        assert incident.to_dict() == {
            "incident": 0,
            "fault": "kill-node",
            "parameters": {},
            "target": "rank=5",
            "ranks": [4, 5],
            "nodes": [2],
            "role": None,
            "step": 100,
            "phase": "backward",
            "at_seconds": None,
            "repair_steps": 60,
            "repair_seconds": None,
        }

    def test_at_a_time_there_is_no_phase(self):
        (incident,) = plan(kill("time=1.5s", "node=1", "10s"))
        said = incident.to_dict()
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
    @settings(max_examples=30, deadline=None)
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
            "from tests.chaos.test_schedule import kill, plan;"
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

    @settings(max_examples=40, deadline=None)
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
