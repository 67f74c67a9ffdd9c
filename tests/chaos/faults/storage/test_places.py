"""In which folder a script saves, by its saves; and what a storage fault says that finds nothing, and advises."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.errors import TargetNotFound
from chaos.experiment.terms import terms
from chaos.faults.base import FaultContext
from chaos.faults.storage._places import checkpoint_folder, observed_folders
from chaos.faults.watch import Watch
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.records import parse

pytestmark = pytest.mark.unit


def saved(step, *paths, rank=0):
    fields = {"saved": [[str(path), 1, 2] for path in paths], "blocking_seconds": 0.1}
    return Event("checkpoint_written", "rank", 0.0, 0.0, 1, step=step, rank=rank, fields=fields)


def context(folder, *events, named=None, is_script=True):
    watch = Watch()
    for event in events:
        watch.feed(event)
    return FaultContext(
        processes=None,
        inside=None,
        watch=watch,
        run_folder=folder / "runs" / "1",
        checkpoint_folder=named,
        has_foreign_checkpoints=is_script,
    )


@pytest.mark.parametrize(
    ("saves", "folders"),
    [
        ([(20, "/p/out/ckpt.pt")], ["/p/out"]),
        ([(20, "/p/out/ckpt.pt"), (40, "/p/out/ckpt.pt")], ["/p/out"]),
        ([(20, "/p/out/step20/model.pt", "/p/out/step20/optim.pt")], ["/p/out"]),
        ([(20, "/p/v2/model.pt")], ["/p/v2"]),
        ([(20, "/p/out/checkpoint-20/model"), (40, "/p/out/checkpoint-40/model")], ["/p/out"]),
        ([(20, "/p/out/20/model/a", "/p/out/20/optim/b"), (40, "/p/out/40/model/a")], ["/p/out"]),
        ([(20, "/p/out/20"), (40, "/p/out/40")], ["/p/out"]),
        ([(20, "/p/out/a.pt", "/p/best/a.pt")], ["/p/best", "/p/out"]),
        ([(20, "/data/out/a.pt"), (40, "/scratch/best/a.pt")], ["/scratch/best", "/data/out"]),
        ([], []),
    ],
    ids=[
        "one save",
        "over the old one",
        "one save, into a folder of its step",
        "a number that is not the step",
        "a folder for each step",
        "folders in a folder for each step",
        "a folder is what was saved",
        "two folders of a wide one",
        "two places",
        "nothing",
    ],
)
def test_the_folder_is_that_of_the_saves(saves, folders):
    records = [parse(saved(step, *paths)) for step, *paths in saves]
    assert sorted(map(str, observed_folders(records, too_wide=[Path("/p"), Path("/")]))) == sorted(folders)


def test_of_several_folders_the_newest_comes_first():
    records = [parse(saved(step, f"/{step}/a/b/c/model.pt")) for step in (20, 40, 60)]
    assert [str(folder) for folder in observed_folders(records)] == ["/60/a/b/c", "/40/a/b/c", "/20/a/b/c"]


def refusal(run):
    with pytest.raises(TargetNotFound) as refused:
        checkpoint_folder(run)
    return refused.value.code, str(refused.value)


def test_a_job_of_ours_without_checkpoints_is_told_its_option(tmp_path):
    assert refusal(context(tmp_path, is_script=False)) == (
        "no_checkpoints",
        "the job writes no checkpoints: give it --checkpoint-every 20",
    )


def test_the_folder_that_a_script_was_seen_saving_in_is_taken(tmp_path):
    (tmp_path / "out").mkdir()
    assert checkpoint_folder(context(tmp_path, saved(20, tmp_path / "out/a.pt"))) == tmp_path / "out"


def test_no_save_was_seen(tmp_path):
    code, text = refusal(context(tmp_path))
    assert code == "nothing_saved"
    assert "the script has saved nothing so far" in text and "--checkpoint-every" not in text


def test_several_folders_are_named_with_steps_and_ranks(tmp_path):
    places = [tmp_path / "a/b/c/d", tmp_path / "e/f/g/h"]
    run = context(tmp_path, *(saved(20, place / "x.pt", rank=rank) for rank, place in enumerate(places)))
    code, text = refusal(run)
    assert code == "several_folders"
    assert text == (
        f"saves by ranks 0 and 1 were seen in {places[1]} and {places[0]} (step 20): name the one that is meant with "
        f"--checkpoint-folder {places[1]}"
    )


def test_what_several_folders_advise_is_accepted(tmp_path):
    places = [tmp_path / "a/b/c/d", tmp_path / "e/f/g/h"]
    run = context(tmp_path, *(saved(20, place / "x.pt") for place in places))
    _, text = refusal(run)
    option, folder = re.search(r"(--\S+) (\S+)$", text).groups()
    assert option in terms().values()
    Path(folder).mkdir(parents=True)
    assert checkpoint_folder(replace(run, checkpoint_folder=Path(folder))) == Path(folder)


def test_a_folder_that_is_not_on_this_machine(tmp_path):
    code, text = refusal(context(tmp_path, saved(20, tmp_path / "container/a.pt")))
    assert code == "no_folder"
    assert "which is no folder of this machine: name one with --checkpoint-folder DIR" in text
