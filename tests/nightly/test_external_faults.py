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
