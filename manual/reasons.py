"""The reference of reasons: every code of a verdict, a caveat, a gate, an incident and a failure, from their tables."""

from __future__ import annotations

from collections.abc import Mapping

from chaos.refusals import REFUSALS
from harness.analysis.command.attempt_list import ENDS as ATTEMPT_ENDS
from harness.analysis.command.no_restart import NO_RESTART
from harness.analysis.job_failures import JOB_FAILURES
from harness.comparison.set_reasons import SET_REASONS
from harness.judging.caveat_reasons import CAVEATS, NO_DEVIATION, REPLICAS_UNKNOWN
from harness.judging.failure import CAUSES
from harness.judging.gate_reasons import ENDS, GATE_REASONS, MISSING
from harness.judging.shared_texts import SHARED
from harness.judging.verdict_reasons import VERDICT
from mecefo_runtime.system.reason import Table

TABLES: Mapping[str, tuple[str, Table]] = {
    "Verdict": (
        "`reason_codes[]` of `summary.json`, with the sentences `reasons[]` in the same order. `verdict` is the one "
        "that a reason speaks for; `failure`, `why`, `other`, `loss` and `overlap` are reasons of the tables below.",
        VERDICT,
    ),
    "Caveats": ("`caveat_codes[]`, with the sentences `caveats[]` in the same order.", CAVEATS),
    "Gates": ("`gates[].why`, with the sentence `gates[].reason`; null of a gate that passed.", GATE_REASONS),
    "Incidents": (
        "`incidents[].why`, with the sentence `incidents[].unverified_reason`; `why` of the events `unverified`, "
        "`not_due` and `undo_failed`. An error that a fault of your own raises with a text alone has "
        "the code `refused`, `target_not_found`, `not_ours`, `effect_not_seen` or `undo_failed`; the text is its field "
        "`sentence`. `failed[].why` of `chaos heal --json`.",
        REFUSALS,
    ),
    "Facts within others": (
        "In the fields of reasons above; the first codes after `stopped_by_signal` are also `incidents[].why` of an "
        "incident whose recovery is undecided.",
        SHARED,
    ),
    "Failures of the job": ("`failure` of a reason of the verdict, and `why` of the event `job_failed`.", JOB_FAILURES),
    "Why nothing started a command again": ("`no_restart` of `summary.json`; null where it is not known.", NO_RESTART),
    "How an attempt of a command ended": (
        "`attempt_list[].end` of `summary.json`; `cause` is the first failure, as in `job_failed`.",
        ATTEMPT_ENDS,
    ),
    "Causes": ("What `chaos shrink` compares: two runs fail alike that have one of them in common.", CAUSES),
    "Sets of runs": (
        "`verdict.reason_codes[]` and `verdict.gates[].why` of `chaos compare --json` and `chaos run --repeat --json`.",
        SET_REASONS,
    ),
}
"""By heading: where the reasons are, and the table."""
WORDS: Mapping[str, Mapping[str, str]] = {
    "`ended` of `not_final`": ENDS,
    "`because` of `no_value`": MISSING,
    "`because` of `no_loss_deviation`": NO_DEVIATION,
    "`because.code` of `replicas_unknown`": REPLICAS_UNKNOWN,
}
"""Fields that hold a code themselves."""

_HEAD = """\
# Reasons

Whatever `chaos` says about a run has a code: why a verdict is not a pass, what a caveat is about, why a gate is
undecided, why a fault did not fire. Programs decide by the code and its fields; the sentence may change with
any version. A code keeps its meaning, and fields are only added.

```sh
jq -r '.reason_codes[].code' summary.json
jq -e 'any(.reason_codes[]; .code == "job_died")' summary.json
jq -r '.reason_codes[] | select(.verdict == "fail") | .failure.code // .code' summary.json
jq -r '.gates[] | select(.passed == null) | "\\(.expression): \\(.why.code)"' summary.json
jq -r '.incidents[] | select(.verified | not) | .why.code' summary.json
```

A reason is an object: `code`, and the fields that the tables name in braces. A field without a value is left out. A
field may be a reason itself. A number that is not finite is the string `nan`, `inf` or `-inf`. A sentence that comes
from a log without codes, or from a fault of your own, is the field `sentence`.
"""


def page() -> str:
    """The page."""
    parts = [_HEAD]
    for heading, (about, table) in TABLES.items():
        rows = "".join(f"| `{code}` | {_cell(table.example(code))} | {_fields(table, code)} |\n" for code in table)
        parts.append(f"\n## {heading}\n\n{about}\n\n| code | sentence | fields |\n|---|---|---|\n{rows}")
    parts.append("\n## Codes in fields\n")
    for what, words in WORDS.items():
        rows = "".join(f"| `{code}` | {_cell(text)} |\n" for code, text in words.items())
        parts.append(f"\n{what}:\n\n| code | meaning |\n|---|---|\n{rows}")
    return "".join(parts)


def _fields(table: Table, code: str) -> str:
    return ", ".join(f"`{name}`" for name in table.fields_of(code))


def _cell(text: str) -> str:
    return text.replace("|", "\\\\|").replace("<", "&lt;")
