"""A command line as its tests run it: in a folder of its own, in this process."""

import pytest

from mecefo_chaos.cli.main import run_cli


@pytest.fixture(autouse=True)
def in_a_folder_of_our_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The width of the message must not depend on the terminal that the tests run in.
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def chaos(capsys):
    """Runs a command line; returns (exit code, standard output, standard error)."""

    def run(*arguments):
        code = run_cli([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return run
