"""English is never data: what decides is a code, every code has its line in a table, and each table is documented."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import pytest

from chaos.errors import EffectNotSeen, HealError, InjectionError, NotOurs, TargetNotFound
from chaos.refusals import NOT_UNDONE
from manual.reasons import TABLES, WORDS, page
from mecefo_runtime.system.json_values import to_json
from mecefo_runtime.system.reason import Made, Reason, Table
from tests.sources import ROOT, SOURCES, nodes, trees

pytestmark = pytest.mark.unit

PACKAGES = ("mecefo_runtime", "chaos", "harness", "mecefo_chaos", "benchmarks")
TRANSLATION = "harness/store/sentences.py"
"""The only file in which sentences of this product are read."""
FOREIGN: Mapping[str, str] = {
    "chaos/external/exception_kind.py": "messages of torch, gloo and NCCL",
    "chaos/external/traceback_text.py": "tracebacks of Python",
    "chaos/faults/storage/disk.py": "messages of torch",
    "chaos/host/inherited.py": "messages of Python",
    "chaos/host/links/nccl_transport.py": "the log of NCCL",
    "harness/backends/cluster/slurm.py": "messages of squeue",
    "harness/backends/command/launcher_log.py": "the log of torchrun",
    "harness/backends/docker/engine.py": "messages of the Docker engine",
    "harness/backends/docker/examination.py": "messages of the Docker engine",
    "chaos/host/containers.py": "messages of the Docker engine",
    "harness/analysis/narrator.py": "messages of gloo",
    "mecefo_chaos/cli/shared/hints.py": "messages of click",
    "mecefo_runtime/comm/operations.py": "messages of gloo",
    "harness/doctor/torch_build.py": "messages of Python",
}
"""Files that read what other programs write."""
LABELS = re.compile(r"chaos [\w ]+ \d|time to loss")
"""The name and version of a file's format, and the heading of a column: no sentences."""
# Of classes of errors, and of events without any reason.
WITHOUT_A_TABLE = {InjectionError.CODE, TargetNotFound.CODE, NotOurs.CODE, EffectNotSeen.CODE} | {
    *("environment", "undo_failed", "not_due", "unverified", "no_run")
}
_THREE_WORDS = re.compile(r"[A-Za-z']+(?:[ ,;:]+[A-Za-z']+){2}")
_METHODS = frozenset(
    ("startswith", "endswith", "removeprefix", "removesuffix", "find", "rfind", "index", "partition", "rpartition")
) | {"match", "search", "fullmatch", "compile", "split", "count"}


def product() -> Iterator[tuple[str, str]]:
    """(path, module) of what is installed or measures it."""
    for module, path in SOURCES.items():
        if module.split(".")[0] in PACKAGES:
            yield str(path.relative_to(ROOT)), module


def literals(node: ast.AST, constants: Mapping[str, list[str]]) -> Iterator[str]:
    """The strings in `node`, and those of the module's constants that it names."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value
        elif isinstance(part, ast.Name):
            yield from constants.get(part.id, ())


def constants_of(module: ast.Module) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node in module.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        # Of a table whose keys are looked up the keys count.
        value = getattr(node, "value", None)
        named = (
            value.keys
            if isinstance(value, ast.Dict)
            else [value]
            if isinstance(value, ast.Constant | ast.Tuple)
            else []
        )
        for target in targets:
            if isinstance(target, ast.Name):
                found[target.id] = [text for part in named if part is not None for text in literals(part, {})]
    return found


def decisions(module: ast.Module, nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, sentence) of each decision on a literal of three words or more."""
    constants = constants_of(module)
    for node in nodes:
        asked: list[ast.AST] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
            asked = list(node.args)
        elif isinstance(node, ast.Compare) and any(
            isinstance(one, ast.In | ast.NotIn | ast.Eq | ast.NotEq) for one in node.ops
        ):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            asked = [node.value]
        for part in asked:
            for text in literals(part, constants):
                if _THREE_WORDS.search(text) and not LABELS.fullmatch(text):
                    yield node.lineno if hasattr(node, "lineno") else 0, text


def decisions_in(module: str) -> Iterator[tuple[int, str]]:
    return decisions(trees()[module], nodes(module))


def decisions_of(code: str) -> list[tuple[int, str]]:
    module = ast.parse(code)
    return list(decisions(module, ast.walk(module)))


def test_no_sentence_decides():
    wrong = [
        f"{path}:{line}: {text[:80]!r}"
        for path, module in product()
        if path != TRANSLATION and path not in FOREIGN
        for line, text in decisions_in(module)
    ]
    assert not wrong, wrong


def test_files_that_read_what_others_write_still_do():
    modules = dict(product())
    assert [path for path in FOREIGN if not any(decisions_in(modules[path]))] == []


@pytest.mark.parametrize(
    "code",
    [
        'if reason.startswith("the job did not survive"): ...',
        'if "is not damaged at" in refused: ...',
        'x = text == "nothing to undo here"',
        '_A = "the job ended before"\nb = why.removeprefix(_A)',
        '_A = {"the job ended before": 1}\nb = why in _A',
        'match why:\n    case "it did not fire": ...',
        're.match(r"rank (\\d+) was not there", line)',
    ],
)
def test_a_decision_on_a_sentence_is_seen(code):
    assert decisions_of(code)


@pytest.mark.parametrize("code", ['x.startswith("kill-")', 'raise E("the job ended before it")', 'x = "a b" in y'])
def test_other_code_is_not_taken_for_one(code):
    assert not decisions_of(code)


def codes() -> set[str]:
    return {code for _, table in TABLES.values() for code in table} | {
        code for words in WORDS.values() for code in words
    }


def test_every_code_that_is_given_has_a_line_in_a_table():
    given = {
        (path, node.args[0].value)
        for path, module in product()
        for node in nodes(module)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Reason" and node.args
        if isinstance(node.args[0], ast.Constant)
    }
    assert len(given) > 100, "the calls were not found"
    assert sorted((path, code) for path, code in given if code not in codes() | WITHOUT_A_TABLE) == []


def test_each_failed_undo_has_a_code_and_its_fields():
    raised = [
        (f"{path}:{node.lineno}", node.args[0])
        for path, module in product()
        for node in nodes(module)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "HealError" and node.args
    ]
    assert len(raised) > 30, "the calls were not found"
    wrong = []
    for place, why in raised:
        if isinstance(why, ast.Attribute) and why.attr == "why":
            continue
        is_reason = isinstance(why, ast.Call) and isinstance(why.func, ast.Name) and why.func.id == "Reason"
        code = why.args[0] if is_reason else None
        if not isinstance(code, ast.Constant) or code.value not in NOT_UNDONE:
            wrong.append(f"{place}: no code")
        elif {*NOT_UNDONE.fields_of(str(code.value))} - {word.arg for word in why.keywords}:
            wrong.append(f"{place}: {code.value} has the fields {NOT_UNDONE.fields_of(str(code.value))}")
    assert wrong == []


def test_every_line_of_a_table_is_of_a_code_that_is_given():
    written = Counter(
        node.value
        for path, module in product()
        if path != TRANSLATION
        for node in nodes(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    in_tables = Counter(code for _, table in TABLES.values() for code in set(table))
    assert sorted(code for code in codes() if written[code] < 2) == []
    assert in_tables


def test_the_page_has_every_code_and_field():
    text = page()
    for _, table in TABLES.values():
        for code in table:
            assert f"| `{code}` |" in text
            assert all(f"`{name}`" in text for name in table.fields_of(code))


def test_examples_name_fields_that_there_are():
    named = re.compile(r"\{(\w+)")
    wrong = [
        (code, name)
        for _, table in TABLES.values()
        for code in table
        for name in named.findall(table.example(code))
        if name not in table.fields_of(code)
    ]
    assert wrong == []


# ---- the values ----


TABLE = Table(
    {
        "plain": "rank {rank} ended after {seconds:g} s",
        "made": Made(lambda why, more=0: f"{TABLE.text(why)}, and {more} more", "{why}, and {more} more"),
    },
    Table({"other": "elsewhere"}),
)


def test_a_sentence_is_made_of_code_and_fields_as_json_has_them():
    inner = Reason("plain", rank=3, seconds=2.5, extra=(1, 2), gone=None)
    reason = Reason("made", why=inner, more=2)
    assert TABLE.text(reason) == "rank 3 ended after 2.5 s, and 2 more"
    assert to_json(reason) == {
        "code": "made",
        "why": {"code": "plain", "rank": 3, "seconds": 2.5, "extra": [1, 2]},
        "more": 2,
    }
    assert Reason.from_dict(to_json(reason)) == reason and len({reason, Reason.from_dict(to_json(reason))}) == 1
    assert TABLE.text(Reason("other")) == "elsewhere"


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        (Reason("newer_version", rank=1), "newer version"),
        (Reason("plain", rank=1), "plain"),
        (Reason("plain", rank=1, seconds="soon"), "plain"),
        (Reason("made", why="nothing"), "made"),
        (Reason("plain", sentence="as it was written"), "as it was written"),
        (Reason("plain", rank=1, seconds=2, later=True, verdict="fail"), "rank 1 ended after 2 s"),
    ],
)
def test_reasons_of_other_versions_have_a_sentence(reason, sentence):
    assert TABLE.text(reason) == sentence


@pytest.mark.parametrize("raw", [{}, {"code": 3}, {"text": "no code"}])
def test_without_a_code_there_is_no_reason(raw):
    with pytest.raises(ValueError, match="code"):
        Reason.from_dict(raw)


def test_an_error_of_a_fault_has_its_reason_or_a_text_with_the_code_of_its_class():
    known = EffectNotSeen(Reason("too_few_steps", steps=3, needed_steps=8))
    assert str(known) == "only 3 steps were committed since, of 8 needed to judge"
    more = known.because("the job was over", "; ")
    assert str(more) == f"{known}; the job was over" and more.why.get("why") == known.why
    assert isinstance(more, EffectNotSeen)
    assert TargetNotFound("no such disk").why == Reason("target_not_found", sentence="no such disk")
    assert InjectionError("no", code="own").code == "own"
    still = HealError(Reason("still_stopped", pids=[7, 8]))
    assert str(still) == "still stopped after SIGCONT: pid 7, 8; try `kill -CONT` yourself"
    assert HealError("it is still there").why == Reason("undo_failed", sentence="it is still there")
