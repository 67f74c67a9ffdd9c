"""Runs and ledgers of an earlier version, as files: what every later version must still read.

`freeze` makes them. The tests read them back, and compare what they say now with what was said then.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from chaos.undo.run_registry import Place

RUNS = Path(__file__).parent / "runs"
LEDGERS = Path(__file__).parent / "ledgers"
EVENTS, EXPERIMENT, SUMMARY = "events.jsonl", "experiment.yaml", "summary.json"
LEDGER, ENTRY, FILES, HEALED = "ledger.jsonl", "entry.json", "files.tar.gz", "healed.json"

# What stands in a stored ledger in the place of what differs from machine to machine.
ROOT = "@ROOT@"
# Texts with spaces that are compared to the letter, by their keys.
EXACT_KEYS = {"at", "command", "expression", "status", "target"}
# Sums may be taken in another order.
RELATIVE_TOLERANCE = 1e-9


def stored(folder: Path) -> list[str]:
    """The names of what is stored in `folder`."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def unpack_run(name: str, folder: Path) -> None:
    """Put the event log and the experiment of a stored run into `folder`; its summary is not among them."""
    folder.mkdir(parents=True)
    with gzip.open(RUNS / name / f"{EVENTS}.gz") as packed:
        (folder / EVENTS).write_bytes(packed.read())
    (folder / EXPERIMENT).write_bytes((RUNS / name / EXPERIMENT).read_bytes())


def places() -> dict[str, str]:
    """The placeholders of this host, its boot and its namespace of processes, and what they stand for."""
    here = Place.here()
    return {"@HOST@": here.host, "@BOOT@": here.boot, "@PID_NAMESPACE@": here.pid_namespace}


def restore_ledger(stored_ledger: Path, root: Path, state: Path) -> None:
    """Put a stored ledger and the files that it names below `root`, and its entry of the registry into `state`.

    Both are then such as a `chaos` that was killed on this machine leaves them.
    """
    root.mkdir(parents=True)
    with tarfile.open(stored_ledger / FILES) as packed:
        # Pipes are among them.
        packed.extractall(root, filter="tar")
    values = {ROOT: str(root), **places()}
    entry = json.loads(filled((stored_ledger / ENTRY).read_text(), values))
    ledger = Path(entry["ledger"])
    ledger.parent.mkdir(parents=True, exist_ok=True)
    ledger.write_text(filled((stored_ledger / LEDGER).read_text(), values))
    # Only what nobody else may write to is believed.
    ledger.chmod(0o600)
    status = ledger.stat()
    entry["ledger_file"] = [status.st_dev, status.st_ino]
    state.mkdir(mode=0o700)
    (state / f"{entry['run']}.json").write_text(json.dumps(entry))
    (state / f"{entry['run']}.json").chmod(0o600)


def filled(text: str, values: Mapping[str, str]) -> str:
    """`text` with the values of this machine in the place of the placeholders."""
    for placeholder, value in values.items():
        text = text.replace(placeholder, value)
    return text


def healed(said: Any, root: Path) -> dict[str, Any]:
    """What `chaos heal` has `said` of a restored ledger, and the files below `root` as it left them."""
    text = json.dumps(said).replace(str(root), ROOT)
    return {"said": json.loads(text), "files": digests(root)}


def digests(root: Path) -> dict[str, str]:
    """SHA-256 of each file below `root`, by path, without ledger and registry; a folder and a link as such."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif name.partition("/")[0] == "state" or path.name == LEDGER:
            continue
        elif path.is_dir():
            found[name] = "a folder"
        elif not path.is_file():
            found[name] = "a pipe or a socket"
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def differences(then: Any, now: Any, path: str = "") -> Iterator[str]:
    """Where `now` says something else than `then`, one line each, with the path in the document.

    Numbers, codes, names, lists and keys must be the same. Keys may be added. A sentence (a text with spaces that is
    not under one of `EXACT_KEYS`) must still be one, in whatever words.
    """
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in then:
            if key in now:
                yield from differences(then[key], now[key], f"{path}.{key}" if path else str(key))
            else:
                yield f"{path}: the key {key} is gone"
    elif isinstance(then, list) and isinstance(now, list):
        if len(then) != len(now):
            yield f"{path}: {len(then)} entries then, {len(now)} now: {then} / {now}"
        else:
            for number, (one, other) in enumerate(zip(then, now, strict=True)):
                yield from differences(one, other, f"{path}[{number}]")
    elif not _agree(then, now, is_exact=path.rpartition(".")[2] in EXACT_KEYS):
        yield f"{path}: {then!r} then, {now!r} now"


def _agree(then: Any, now: Any, *, is_exact: bool) -> bool:
    if isinstance(then, float) and isinstance(now, float):
        both_nan = math.isnan(then) and math.isnan(now)
        return both_nan or math.isclose(then, now, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-12)
    if isinstance(then, str) and isinstance(now, str) and is_sentence(then) and not is_exact:
        return is_sentence(now)
    return type(then) is type(now) and bool(then == now)


def is_sentence(text: str) -> bool:
    """Whether a text is written for people, and not a code, a name or a path."""
    return " " in text.strip()
