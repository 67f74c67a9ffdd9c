"""`python -m harness.node RUN`: the agent of a host, over standard input and output.

`python -m harness.node RUN heal` undoes what an agent has left on its host, `python -m harness.node doctor examine`
looks what the host can do; both print their answer as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from chaos.host import python_module
from chaos.host.run_processes import RUN_VARIABLE, is_name
from harness.node.bridge import pass_on
from harness.node.socket_folder import SocketFolder
from mecefo_runtime.system.process import set_name

_USAGE = "usage: python -m harness.node RUN [heal|examine], as `chaos` starts it on each host of a run"


def _answer(run: str, question: str) -> Any:
    from harness.node.facts import tool_version
    from harness.node.healing import heal_here
    from harness.node.own_rights import examine_here
    from mecefo_runtime.system.json_values import to_json

    if question == "heal":
        return to_json(heal_here(run))
    return {"version": tool_version(), "findings": [to_json(finding) for finding in examine_here()]}


def _be_agent(run: str) -> int:
    import asyncio

    from chaos.errors import ChaosError
    from chaos.faults import registry
    from chaos.injection.serving import log, standard_streams
    from harness.node.agent import serve

    # All that an undo needs is in memory before there is anything to undo.
    registry()

    async def serve_streams() -> int:
        reader, writer = await standard_streams()
        try:
            return await serve(run, reader, writer)
        except ChaosError as error:
            log(str(error))
            return 1

    return asyncio.run(serve_streams())


def main() -> None:
    """Serve one run."""
    if not is_name("".join(sys.argv[1:2])) or sys.argv[2:] not in ([], ["heal"], ["examine"]):
        sys.exit(_USAGE)
    run = sys.argv[1]
    if sys.argv[2:]:
        python_module.begin_output()
        print(json.dumps(_answer(run, sys.argv[2])))
        return
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    # A fault of the node must not end it.
    os.environ.pop(RUN_VARIABLE, None)
    if pass_on(SocketFolder(run)):
        return
    set_name("chaos-agent")
    sys.exit(_be_agent(run))


if __name__ == "__main__":
    main()
