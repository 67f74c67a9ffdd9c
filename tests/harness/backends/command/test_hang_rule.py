"""The user's own rule for a hang, against lines with their times, and the time-outs of a command."""

import pytest

from chaos.errors import UsageError
from chaos.experiment.command_job import HangRuleText, _hang_rule
from harness.backends.command.hang_rule import HangRuleWatch
from harness.backends.command.timeouts import timeouts_of
from mecefo_runtime.job.command_settings import HangRule
from mecefo_runtime.system.command_records import HangRuleFired
from tests.harness.analysis.test_attempts import KILLED, LAST, RESTART, RESUMED, STARTUP, Log
from tests.harness.summaries import summarized

pytestmark = pytest.mark.unit


def fired(lines, seconds=5.0):
    watch = HangRuleWatch(HangRule("step [0-9]+", seconds), 0.0)
    told = [(at, record) for at, some in lines for record in watch.read(some, at)]
    return [at for at, record in told if isinstance(record, HangRuleFired)]


def test_it_fires_once_in_each_silence():
    steps = [(at, [f"step {at}"]) for at in (1.0, 2.0)]
    later = [(6.9, ["other"]), (7.1, []), (9.0, []), (9.5, ["step 3"]), (14.0, []), (14.6, [])]
    assert fired([*steps, *later]) == [7.1, 14.6]
    assert fired([*steps, (6.9, ["step 3"]), (11.8, [])]) == []


def test_a_line_that_comes_too_late_does_not_take_it_back():
    assert fired([(1.0, ["step 1"]), (6.5, ["step 2"]), (7.0, [])]) == [6.5]


def log_with(*alarms, matches=True):
    """A kill and a restart; `alarms` are seconds after the fault, negative before it."""
    log = Log()
    log.events[0].fields["experiment"]["job"]["hang_rule"] = {"pattern": "step", "seconds": "2s"}
    log.at += STARTUP
    log.attempt(1)
    if matches:
        log.tell("hang_rule_cleared", pattern="step")
    log.steps(1, 1, KILLED - 1)
    log.kill(1)
    struck = log.at
    for after in alarms:
        log.at = struck + after
        log.tell("hang_rule_fired", pattern="step", rule_seconds=2.0, silent_since_monotonic=log.at - 2.0)
    log.at = struck + RESTART
    log.attempt(2)
    log.tell("steps_counted", pid=20, step=RESUMED, count_kept_by="optimizer")
    log.steps(2, RESUMED, LAST)
    log.events.sort(key=lambda one: one.monotonic_seconds)
    return summarized(log.end())


def test_what_fired_after_the_fault_is_its_own_and_before_it_a_false_alarm():
    found = log_with(-1.5, 2.0)
    assert found["incidents"][0]["hang_rule_fired_seconds"] == pytest.approx(2.0)
    assert (found["hang_rule_false_alarms"], found["hang_rule_seconds"]) == (1, 2.0)
    silent = log_with()
    assert (silent["incidents"][0]["hang_rule_fired_seconds"], silent["hang_rule_false_alarms"]) == (None, 0)


def test_a_rule_that_no_line_matched_says_nothing():
    found = log_with(-1.5, 2.0, matches=False)
    assert found["hang_rule"] == "step"
    assert (found["incidents"][0]["hang_rule_fired_seconds"], found["hang_rule_false_alarms"]) == (None, None)


def test_a_rule_is_read_from_one_text():
    rule = HangRuleText.model_validate(_hang_rule("10min:loss: [0-9]"))
    assert (rule.pattern, rule.seconds.seconds) == ("loss: [0-9]", 600.0)
    for text in ("step", ":step", "10s:"):
        with pytest.raises(UsageError):
            _hang_rule(text)


def test_time_outs_are_those_that_were_written():
    command = ["torchrun", "--rdzv-conf", "timeout=60,read_timeout=5,is_host=1", "train.py"]
    found = timeouts_of(command, {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "480", "HOME": "/"})
    assert found == {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "480", "rdzv.timeout": "60", "rdzv.read_timeout": "5"}
    assert timeouts_of(["torchrun", "train.py"], {}) == {}
