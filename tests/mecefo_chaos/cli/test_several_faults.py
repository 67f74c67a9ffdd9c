"""Several faults on one command line: `--and FAULT` begins another one."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.experiment.fault_options import MORE_FAULTS
from mecefo_chaos.cli.main import cli

pytestmark = pytest.mark.unit

FIRST = ("kill-process", "--at", "step=20", "--on", "rank=1")
SECOND = ("--and", "slow-rank", "--at", "step=30", "--on", "rank=0", "-p", "factor=3", "--for", "5steps")


def faults_of(chaos, *arguments):
    code, out, err = chaos("plan", "--json", *arguments)
    assert code == 0, err
    return json.loads(out)["experiment"]


def test_each_fault_has_the_options_that_follow_it(chaos):
    experiment = faults_of(chaos, *FIRST, *SECOND, "--and", "set-nan", "--every", "100steps", "--count", "2")
    assert experiment["name"] == "kill-process-and-slow-rank-and-set-nan"
    first, second, third = experiment["faults"]
    assert (first["kind"], first["on"], first["at"]) == ("kill-process", "rank=1", "step=20")
    assert "for" not in first
    assert (second["kind"], second["on"], second["at"], second["for"]) == ("slow-rank", "rank=0", "step=30", "5steps")
    assert second["factor"] == 3
    assert (third["kind"], third["every"], third["count"]) == ("set-nan", "100steps", 2)


def test_the_first_fault_need_not_come_first(chaos):
    assert faults_of(chaos, *FIRST[1:], FIRST[0], *SECOND) == faults_of(chaos, *FIRST, *SECOND)
    assert faults_of(chaos, *FIRST, "--and=slow-rank", *SECOND[2:]) == faults_of(chaos, *FIRST, *SECOND)


def test_a_long_line_has_a_short_name(chaos):
    line = [word for step in range(1, 7) for word in ("--and", "set-nan", "--at", f"step={step}")]
    assert faults_of(chaos, *line[1:])["name"] == "set-nan-and-set-nan-and-set-nan-and-set-nan-and-2-more"
    assert faults_of(chaos, *line[1:], "--name", "mine")["name"] == "mine"


# Options of the experiment: one word each, so that they can be put between any two others.
OF_THE_EXPERIMENT = ("--seed=7", "--gate=steps_lost < 3", "--gate=goodput > 1%", "--no-twin", "--name=x", "--nodes=3")
FAULTS = st.lists(
    st.tuples(st.sampled_from(("set-nan", "raise", "exit")), st.integers(1, 500), st.sampled_from(("", "--for=3s"))),
    min_size=1,
    max_size=4,
)


@given(FAULTS, st.permutations(OF_THE_EXPERIMENT), st.randoms(use_true_random=False))
def test_options_of_the_experiment_may_stand_anywhere(faults, options, random):
    """Where they stand changes nothing but the order of the gates, which is that of the line."""
    of_faults = [[kind, f"--at=step={step}", *filter(None, [lifetime])] for kind, step, lifetime in faults]
    separated = [list(words) for words in of_faults]
    for option in options:
        words = random.choice(separated)
        words.insert(random.randint(1, len(words)), option)

    def parsed(parts):
        line = [word for part in parts for word in ("--and", *part)][1:]
        return cli.commands["plan"].make_context("plan", line).params

    mixed, apart = parsed(separated), parsed([[*of_faults[0], *options], *of_faults[1:]])
    assert sorted(mixed.pop("gates")) == sorted(apart.pop("gates"))
    assert mixed == apart
    assert len(mixed[MORE_FAULTS]) == len(faults) - 1


@pytest.mark.parametrize("command", [(), ("--", "torchrun", "--nproc-per-node", "2", "train.py", "--and", "more")])
def test_the_file_of_init_has_all_of_them(chaos, tmp_path, command):
    (tmp_path / "train.py").touch()
    assert chaos("init", *FIRST, *SECOND, "--name", "two", "-o", "two.yaml", *command)[0] == 0
    of_file = chaos("plan", "--json", "two.yaml")
    assert of_file == chaos("plan", "--json", *FIRST, *SECOND, "--name", "two", *command)
    assert len(json.loads(of_file[1])["experiment"]["faults"]) == 2


def test_a_file_gets_one_more(chaos, tmp_path):
    (tmp_path / "one.yaml").write_text("name: one\nfaults:\n- {kind: kill-node, at: step=5}\n")
    faults = faults_of(chaos, "one.yaml", "--at", "step=9", *SECOND)["faults"]
    assert [(fault["kind"], fault["at"]) for fault in faults] == [("kill-node", "step=9"), ("slow-rank", "step=30")]
    code, _, err = chaos("plan", "one.yaml", "--and", "set-nan", "--at", "step=900")
    assert code == 4 and "--at of set-nan: step=900" in err


def test_the_quick_run_is_short_enough_for_each(chaos):
    code, out, err = chaos("run", "--quick", "--dry-run", "--and", "kill-process", "--at", "step=90")
    assert code == 0
    assert "--and kill-process --at step=90 --repair 10steps" in err
    assert "kill-node on" in out and "at step=90, repaired after 10steps" in out
    code, _, err = chaos("run", "--quick", "--dry-run", "--and", "set-nan", "--at", "step=101")
    assert code == 4 and "--at of set-nan: step=101 is after the 100 steps" in err


MISTAKES = {
    "of two kinds": (
        ("kill-process", "--at", "step=x", "--and", "set-nan", "--on", "rank=99", "--at", "step=5"),
        {"--at of kill-process", "--on of set-nan"},
    ),
    "of one kind": (
        ("set-nan", "--at", "step=5", "--and", "set-nan", "--at", "5", "-p", "where=x"),
        {"--at of fault 2 (set-nan)", "--param where of fault 2 (set-nan)"},
    ),
    "parameters": (
        ("set-nan", "--at", "step=5", "--and", "raise", "--at", "step=5", "-p", "x", "-p", "y=1"),
        {"--param 'x' of raise", "--param y of raise"},
    ),
    "unknown kind": (
        ("set-nan", "--at", "step=5x", "--and", "set-nam", "--at", "step=5"),
        {"--at of set-nan", "--and"},
    ),
    "no trigger": (
        ("set-nan", "--steps", "x", "--and", "raise", "--seed", "y"),
        {"--at of set-nan", "--at of raise", "--steps", "--seed"},
    ),
}


@pytest.mark.parametrize(("arguments", "keys"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_name_the_fault_and_are_told_at_once(chaos, arguments, keys):
    code, out, err = chaos("run", *arguments)
    assert (code, out) == (4, "")
    assert set(re.findall(r"^  ([^:]+):", err, re.MULTILINE)) == keys, err


def test_what_a_fault_needs_is_told_of_that_fault(chaos):
    code, _, err = chaos("plan", "set-nan", "--at", "step=5", "--and", "hide-checkpoint", "--at", "step=50")
    assert code == 4 and "fault 2: hide-checkpoint needs" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*FIRST, "--and"), ["--and: which fault?", "`--and set-nan --at step=30`"]),
        ((*FIRST, "--and", "--at", "step=5"), ["--and: which fault?"]),
        ((*FIRST, "--and", "set-nan", "raise"), ["unexpected extra argument (raise) after --and set-nan"]),
        ((*FIRST, "--and", "set-nan", "--att", "step=5"), ["no such option '--att'"]),
        ((*FIRST, "--and", "set-nan", "--at", "step=5", "--at", "step=6"), ["--at: is given twice", "--and"]),
        ((*FIRST[:1], "--at", "--and", "set-nan"), ["option '--at' requires an argument"]),
        ((*FIRST, "--name", "--and", "set-nan", "--at", "step=5"), ["option '--name' requires an argument"]),
        ((*FIRST, "--name", "--and", "set-nan", "--on"), ["option '--name' requires an argument"]),
        (("none", "--and", "set-nan", "--at", "step=5"), ["--and: none is a run without a fault: write set-nan"]),
        (("--profile", "llama3", "--and", "set-nan", "--at", "step=5"), ["--and: adds a fault", "without --and"]),
        ((*FIRST, "--name", "--seed", "3"), ["--name: has no value: the word behind it is the option --seed"]),
    ],
)
def test_lines_that_cannot_be_parsed(chaos, arguments, words):
    code, out, err = chaos("run", *arguments)
    assert (code, out) == (4, "")
    assert all(word in err for word in words), err
    assert len(err.splitlines()) == 1


def test_strategies_are_compared_under_all_of_them(chaos):
    line = ("compare", "--strategies", "ndb,exact", *FIRST, "--and", "set-nan", "--at", "step=x")
    assert "--at of set-nan" in chaos(*line)[2]
    code, _, err = chaos("compare", "latest", "before", "--and", "set-nan", "--at", "step=5")
    assert code == 4 and "--and: stored runs are compared" in err


@pytest.mark.parametrize("command", ["run", "plan", "init", "compare"])
def test_help_has_an_example(chaos, command):
    assert "--and set-nan --at step=30" in " ".join(chaos(command, "--help")[1].split())
