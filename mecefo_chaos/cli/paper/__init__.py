"""`chaos paper PAPER`: a subcommand for each paper, which parses its options and starts its check.

What a check computes and how it is shown belongs to the studies.
"""

from __future__ import annotations

import click

from mecefo_chaos.cli.paper.mecefo import mecefo
from mecefo_chaos.cli.paper.reft import reft
from mecefo_chaos.cli.paper.spare import spare

_HELP = """Check a paper's claims: MeCeFO (arXiv 2510.16415), REFT (arXiv 2310.12670), SPARe (arXiv 2603.00357).

What was emulated, drawn, run and simulated when this version was made comes with it, with its date and machine;
results of your own take its place.

Exit codes: 0 all gates that are decided passed; 1 one failed; 5 none is decided.
"""


@click.group(help=_HELP)
def paper() -> None:
    """The papers."""


for command in (mecefo, reft, spare):
    paper.add_command(command)
