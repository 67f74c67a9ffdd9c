"""Every kind of event as a typed record. The reference of events is made of these classes."""

from __future__ import annotations

from collections.abc import Mapping

from mecefo_runtime.system import command_records, job_records, run_records
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.record import Record

RECORDS: Mapping[str, type[Record]] = {
    record.KIND: record
    for module in (run_records, job_records, command_records)
    for record in vars(module).values()
    if isinstance(record, type) and issubclass(record, Record) and record.KIND
}


def parse(event: Event) -> Record:
    """The typed record of `event`; a plain `Record` where its kind is not known.

    Raises:
        ValueError: one of its fields is not what it should be: a damaged log, or one of another version.
    """
    return RECORDS.get(event.kind, Record).of(event)
