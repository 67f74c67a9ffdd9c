"""The command line that repeats a run: on this machine, or on one that has only the artifact of a CI job."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from chaos.host.run_files import EXPERIMENT_FILE
from harness.judging.summary import Summary

ARTIFACT_VARIABLE = "CHAOS_ARTIFACT"
"""Names the artifact into which a CI job uploads the content of the folder `--out`; action.yml sets it."""
_CI_VARIABLES = ("CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY")
_WORKSPACE_VARIABLES = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A command line, and where it works if not anywhere on this machine: `in the downloaded artifact chaos-runs`."""

    command: str
    where: str = ""


def reproduction(summary: Summary, folder: Path | None, environment: Mapping[str, str] | None = None) -> Reproduction:
    """How to repeat the run whose files are in `folder`; with a CI job's `environment`, on another machine."""
    if folder is None:
        return Reproduction(_run(PurePosixPath(EXPERIMENT_FILE)), "in the run's folder")
    environment = environment or {}
    if any(environment.get(name, "") not in ("", "false") for name in _CI_VARIABLES):
        return _from_the_artifact(summary, folder, environment)
    file = folder / EXPERIMENT_FILE
    if not summary.started_in:
        return Reproduction(_run(file))
    # A command finds its files only from where it was started.
    command = _run(file.absolute())
    if not Path(summary.started_in).is_dir():
        return Reproduction(command, "in a checkout, in the folder in which the command starts")
    return Reproduction(f"cd {shlex.quote(summary.started_in)} && {command}")


def _from_the_artifact(summary: Summary, folder: Path, environment: Mapping[str, str]) -> Reproduction:
    out, run = folder.absolute().parent.parent, PurePosixPath(folder.absolute().parent.name, folder.name)
    artifact = environment.get(ARTIFACT_VARIABLE)
    name = artifact or out.name
    what = f"{'artifact' if artifact else 'folder'} {name}"
    if not summary.started_in:
        return Reproduction(_run(run / EXPERIMENT_FILE), f"in the downloaded {what}")
    subfolder = _within_workspace(summary.started_in, environment)
    up = PurePosixPath(*[".."] * len(subfolder.parts))
    command = _run(up / name / run / EXPERIMENT_FILE)
    there = f"cd {shlex.quote(str(subfolder))} && " if subfolder.parts else ""
    return Reproduction(f"{there}{command}", f"in a checkout, with the {what} downloaded into {name}")


def _within_workspace(started_in: str, environment: Mapping[str, str]) -> PurePosixPath:
    """Where in a checkout the command starts; at its root where that is not known."""
    for variable in _WORKSPACE_VARIABLES:
        workspace = environment.get(variable)
        if workspace:
            relative = os.path.relpath(started_in, workspace)
            if not relative.startswith(".."):
                return PurePosixPath(relative)
    return PurePosixPath()


def _run(file: Path | PurePosixPath) -> str:
    return f"chaos run {shlex.quote(str(file))}"
