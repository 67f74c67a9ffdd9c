"""Further faults inside an external job."""

import pytest

from tests.integration.runs import run_chaos
from tests.integration.test_external_faults import (
    RANKS,
    SHARDED,
    TORCHRUN,
    TRAINING,
    assert_named_as_in_the_log,
)

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize(
    ("fault", "parameters"),
    [
        ("scale", ("-p", "where=gradients")),
        ("scale", ("-p", "where=optimizer")),
        ("stale-gradient", ()),
    ],
    ids=["scale", "optimizer", "stale"],
)
def test_the_optimizer_takes_them_in(tmp_path, plain, fault, parameters):
    run = run_chaos(tmp_path, fault, "--at", "step=8", *parameters, command=plain)
    assert run.exit_code == 0, run.summary["reasons"]
    (told,) = run.one("verified").fields["evidence"]["ranks"]
    assert told["outcome"] == "consumed"
    update = told["update"]
    assert update["parameter_actual"] == pytest.approx(update["parameter_struck"], rel=1e-5)
    assert update["parameter_actual"] != update["parameter_clean"]
    assert run.summary["steps_committed"] == 30


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("raise", 1, "RuntimeError: injected by chaos"),
        ("exit", 1, "_exit(1)"),
    ],
)
def test_of_a_script_without_a_launcher(tmp_path, plain, fault, code, words):
    run = run_chaos(tmp_path, fault, "--at", "step=8,phase=backward", command=plain)
    assert (run.exit_code, run.summary["steps_committed"]) == (1, 7)
    evidence = run.one("verified").fields["evidence"]
    assert words in evidence["summary"]
    assert [process["exit"] for process in evidence["processes"]] == [code]
    assert run.of("culprit_named") == []
    assert run.summary["incidents"][0]["diagnosis"]["score"] == "none"


def test_a_gradient_of_one_replica_is_affected_after_the_reduction(tmp_path, restarting):
    run = run_chaos(tmp_path, "set-inf", "--at", "step=8", "--on", "rank=1", command=restarting)
    (told,) = run.one("verified").fields["evidence"]["ranks"]
    assert (told["rank"], told["outcome"], told["phase"]) == (1, "consumed", "optimizer")
    assert run.summary["attempts"] == 1


def test_a_part_of_a_parameter_that_is_gathered_from_all_ranks(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SHARDED)
    fault = ("bit-flip", "-p", "where=parameters", "--at", "step=4", "--on", "rank=1")
    run = run_chaos(tmp_path, *fault, command=(*TORCHRUN, *RANKS, str(script)))
    assert run.exit_code == 0, run.summary["reasons"]
    (told,) = run.one("verified").fields["evidence"]["ranks"]
    assert (told["rank"], told["outcome"]) == (1, "consumed")
    assert "a forward pass computed with it" in told["receiver"]


def test_and_ends_it_where_that_was_asked_for(tmp_path, plain):
    # JSON is YAML.
    command = str(list(plain)).replace("'", '"').replace('"30"', '"100000"')
    tmp_path.joinpath("e.yaml").write_text(
        f"name: halting\nhalt: [training_loss is nan]\nfaults: [{{kind: set-nan, at: step=8}}]\n"
        f"job: {{runtime: command, command: {command}}}\n"
    )
    run = run_chaos(tmp_path, "e.yaml")
    assert (run.exit_code, run.summary["verdict"]) == (2, "halted")
    assert run.of("halted")[0].step == 9


def test_and_the_one_that_was_killed(tmp_path):
    command = (*TORCHRUN, *RANKS, TRAINING, "30", str(tmp_path / "c.pt"))
    run = run_chaos(tmp_path, "kill-process", "--at", "step=8", "--on", "rank=1", command=command)
    assert_named_as_in_the_log(run)
