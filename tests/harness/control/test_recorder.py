"""The event log, and why it cannot be written."""

import errno
import os

import pytest

from chaos.errors import EnvironmentFailure
from harness.control.recorder import Recorder
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.run_records import Warned

pytestmark = pytest.mark.unit


class Short:
    """A file that takes ten bytes, and then fails."""

    def __init__(self, number):
        self.number, self.taken = number, b""

    def write(self, data):
        if self.taken:
            raise OSError(self.number, os.strerror(self.number))
        self.taken = data[:10]
        return 10


@pytest.mark.parametrize(
    ("number", "said", "unsaid"), [(errno.ENOSPC, "free some space", "ulimit"), (errno.EFBIG, "ulimit -f", "space")]
)
def test_half_a_line_tells_what_is_full(tmp_path, number, said, unsaid):
    recorder = Recorder(tmp_path / "events.jsonl")
    recorder.close()
    recorder._file = Short(number)
    with pytest.raises(EnvironmentFailure) as failure:
        Emitter(recorder.write, "conductor").emit(Warned(message="x"))
    assert said in str(failure.value) and unsaid not in str(failure.value)
