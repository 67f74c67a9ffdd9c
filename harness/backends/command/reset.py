"""Puts an external job back to its beginning: runs the user's reset command before each start of the job."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from chaos.errors import EnvironmentFailure
from chaos.experiment.command_job import CommandConfig
from chaos.host import inherited
from harness.analysis.words import exit_text
from mecefo_runtime.system.command_records import JobReset
from mecefo_runtime.system.emitter import Emitter

LOG = "reset.log"
TIMEOUT_SECONDS = 600.0


async def reset(job: CommandConfig, environment: Mapping[str, str], logs: Path, emitter: Emitter) -> None:
    """Run `job.reset`, where there is one, in a shell in the job's folder; what it prints is in `logs`.

    Raises:
        EnvironmentFailure: it ends with another exit code than 0, or not within ten minutes.
    """
    if job.reset is None:
        return
    began = time.monotonic()
    log, open_files = logs / LOG, inherited.open_file_limits()[0]
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_shell(
            job.reset,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=job.folder,
            env=dict(environment),
            start_new_session=True,
            preexec_fn=lambda: inherited.give_back_open_files(open_files),
        )
    try:
        code = await asyncio.wait_for(process.wait(), TIMEOUT_SECONDS)
    except TimeoutError:
        raise EnvironmentFailure(f"job.reset has not ended within {TIMEOUT_SECONDS:g} s: {job.reset}") from None
    finally:
        if process.returncode is None:
            # It leads a session: what it started goes with it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    emitter.emit(JobReset(reset_command=job.reset, exit=code, seconds=time.monotonic() - began))
    if code:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        said = f": {lines[-1].strip()}" if lines else ""
        raise EnvironmentFailure(f"job.reset ended with {exit_text(code)}{said} ({job.reset})")
