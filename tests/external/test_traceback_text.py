"""Exceptions as Python prints them: chains, workers, groups, several ranks at a time."""

import pytest

from chaos.external.exception_kind import OWN, PEER, TIMEOUT, kind_of
from chaos.external.traceback_text import exceptions_in

pytestmark = pytest.mark.unit

HEADER = "Traceback (most recent call last):\n"
CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


def frame(line, file="/home/me/train.py"):
    return f'  File "{file}", line {line}, in step\n    do()\n    ^^^^\n'


IN_TORCH = frame(3, "/venv/lib/python3.11/site-packages/torch/_tensor.py")
ENOSPC = f"{HEADER}{frame(12)}OSError: [Errno 28] No space left on device\n"
DEEP = f"{ENOSPC}{CAUSE}{HEADER}{frame(14)}RuntimeError: shard 3\n"
WORKER = f"{HEADER}{frame(35)}{IN_TORCH}RuntimeError: Caught OSError in DataLoader worker process 0.\nOriginal {ENOSPC}"
DEEP_WORKER = (
    f"{HEADER}{frame(35)}RuntimeError: Caught RuntimeError in DataLoader worker process 0.\n"
    f"Original {ENOSPC}{CAUSE}{HEADER}{frame(14)}RuntimeError: shard 3\n"
)
SPAWNED = (
    f"{HEADER}{frame(50)}torch.multiprocessing.spawn.ProcessRaisedException: \n\n"
    f"-- Process 1 terminated with the following error:\n{HEADER}{frame(20)}ValueError: by itself\n"
)
POOL = (
    f'multiprocessing.pool.RemoteTraceback: \n"""\n{ENOSPC}"""\n{CAUSE}{HEADER}{frame(60)}OSError: [Errno 28] again\n'
)
GROUP = (
    "  + Exception Group Traceback (most recent call last):\n"
    '  |   File "/home/me/train.py", line 9, in main\n  |     go()\n'
    "  | ExceptionGroup: two (2 sub-exceptions)\n  +-+---------------- 1 ----------------\n"
    "    | Traceback (most recent call last):\n"
    '    |   File "/home/me/train.py", line 4, in one\n    |     do()\n    | ValueError: first\n'
    "    +------------------------------------\n"
)


def chain(one):
    return [(cause.exception, cause.line, cause.link) for cause in (one, *one.causes)]


@pytest.mark.parametrize(
    ("text", "chains"),
    [
        ("step 1\nloss: 3\n", []),
        (ENOSPC, [[("OSError", 12, None)]]),
        (DEEP, [[("RuntimeError", 14, None), ("OSError", 12, "cause")]]),
        (DEEP.replace(CAUSE, CONTEXT), [[("RuntimeError", 14, None), ("OSError", 12, "context")]]),
        (ENOSPC + DEEP, [[("OSError", 12, None)], [("RuntimeError", 14, None), ("OSError", 12, "cause")]]),
        (WORKER, [[("RuntimeError", 35, None), ("OSError", 12, "remote")]]),
        (DEEP_WORKER, [[("RuntimeError", 35, None), ("RuntimeError", 14, "remote"), ("OSError", 12, "cause")]]),
        (
            SPAWNED,
            [[("torch.multiprocessing.spawn.ProcessRaisedException", 50, None), ("ValueError", 20, "remote")]],
        ),
        (GROUP, [[("ExceptionGroup", 9, None), ("ValueError", 4, "remote")]]),
        (
            '  File "train.py", line 3\n    x = = 2\n        ^\nSyntaxError: invalid syntax\n',
            [[("SyntaxError", 3, None)]],
        ),
        (f"{HEADER}{frame(3)}KeyboardInterrupt\n", [[("KeyboardInterrupt", 3, None)]]),
        (f"{HEADER}{IN_TORCH}ValueError: x\n", [[("ValueError", None, None)]]),
    ],
)
def test_exceptions_are_read_with_what_led_to_them(text, chains):
    assert [chain(one) for one in exceptions_in(text.splitlines())] == chains


def test_what_a_pool_tells_is_read_up_to_its_end():
    (told,) = exceptions_in(f"{HEADER}{frame(1)}{POOL}".splitlines())
    assert told.exception == "OSError" and told.causes[-1].message == "[Errno 28] No space left on device"


@pytest.mark.parametrize("prefixes", [("[rank0]: ", "[rank1]: "), ("[1,0]<stderr>: ", "[1,1]<stderr>: ")])
def test_ranks_that_print_at_the_same_time_are_told_apart(prefixes):
    texts = [ENOSPC, ENOSPC.replace("line 12", "line 13").replace("OSError: [Errno 28] No", "ValueError: no")]
    lines = [
        prefix + line
        for pair in zip(*(text.splitlines() for text in texts), strict=True)
        for prefix, line in zip(prefixes, pair, strict=True)
    ]
    assert [(one.rank, one.exception, one.line) for one in exceptions_in(lines)] == [
        (0, "OSError", 12),
        (1, "ValueError", 13),
    ]


@pytest.mark.parametrize(
    ("exception", "message", "kind"),
    [
        ("RuntimeError", "injected", OWN),
        ("RuntimeError", "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection closed by peer", PEER),
        (
            "RuntimeError",
            "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 4000ms for recv",
            TIMEOUT,
        ),
        ("RuntimeError", "[enforce fail at allreduce.cc:22] gloo::EnforceNotMet . size mismatch", OWN),
        ("torch.distributed.DistStoreError", "wait timeout after 2000ms, keys: /g/0/2", TIMEOUT),
        ("torch.distributed.DistNetworkError", "failed to recv, got 0 bytes", PEER),
        ("DistNetworkError", "The client socket has timed out after 60000ms while trying to connect", TIMEOUT),
        (
            "torch.distributed.DistBackendError",
            "NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited or there was a network error",
            PEER,
        ),
        (
            "torch.distributed.DistBackendError",
            "[Rank 0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=6)",
            TIMEOUT,
        ),
        ("torch.distributed.DistBackendError", "NCCL error: unhandled cuda error, out of memory", OWN),
        ("RuntimeError", "Rank 1 failed to pass monitoredBarrier in 30000 ms", TIMEOUT),
        ("ConnectionResetError", "[Errno 104] Connection reset by peer", OWN),
        ("requests.exceptions.ReadTimeout", "Read timed out. (read timeout=10)", OWN),
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", OWN),
    ],
)
def test_whose_failure_an_exception_tells_of(exception, message, kind):
    assert kind_of(exception, message) == kind
