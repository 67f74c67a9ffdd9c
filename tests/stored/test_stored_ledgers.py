"""Ledgers that an earlier version has left pending are healed by this one: the same is undone, to the same files."""

import json

import pytest

from chaos.undo import run_registry
from chaos.undo.ledger import read_ledger
from mecefo_chaos.cli.main import run_cli
from tests import stored

pytestmark = pytest.mark.unit


@pytest.fixture
def heal(tmp_path, monkeypatch, capsys):
    """Runs `chaos heal --json` on a restored ledger; returns the exit code, and what it says and leaves."""
    root = tmp_path.resolve() / "run"
    monkeypatch.setenv(run_registry.STATE_VARIABLE, str(root / "state"))

    def heal(name):
        stored.restore_ledger(stored.LEDGERS / name, root, root / "state")
        code = run_cli(["heal", "--json", "--out", str(root / "out")])
        return code, stored.healed(json.loads(capsys.readouterr().out), root)

    return heal


def pending(root):
    (ledger,) = root.rglob(stored.LEDGER)
    return read_ledger(ledger).pending


@pytest.mark.parametrize("name", stored.stored(stored.LEDGERS))
def test_a_stored_ledger_is_healed_as_it_was(name, heal, tmp_path):
    then = json.loads((stored.LEDGERS / name / stored.HEALED).read_text())
    code, now = heal(name)
    assert code == 0, now["said"]
    assert now["files"] == then["files"]
    assert not list(stored.differences(then["said"], now["said"]))
    assert pending(tmp_path) == ()
    assert run_registry.registered() == (), "a clean run is forgotten"
    # A second time there is nothing to do.
    assert run_cli(["heal", "--out", str(tmp_path / "out")]) == 0


def test_the_stored_ledgers_are_pending_and_of_different_faults(tmp_path):
    kinds = set()
    for name in stored.stored(stored.LEDGERS):
        root = tmp_path / name
        stored.restore_ledger(stored.LEDGERS / name, root, root / "state")
        (entry,) = pending(root)
        assert entry.state == "applied" and entry.record
        kinds.add(entry.fault)
    assert len(kinds) >= 10
