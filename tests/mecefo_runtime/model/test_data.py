from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mecefo_runtime.model.data import (
    MAX_STANDARD_LIBRARY_BYTES,
    Corpus,
    DataError,
    checksum,
    read_corpus,
    sample_checksum,
    samples_of_step,
)

pytestmark = pytest.mark.unit


def numbered_text(num_windows: int, window_bytes: int) -> bytes:
    """A text whose windows all differ: window i starts with i as two bytes."""
    return b"".join(i.to_bytes(2, "big") + bytes(window_bytes - 2) for i in range(num_windows))


shapes = {"num_windows": st.integers(1, 300), "sequence_length": st.integers(1, 20), "seed": st.integers(0, 2**32)}


@settings(deadline=None)
@given(**shapes, index_of_pass=st.integers(0, 5))
def test_a_pass_visits_every_window_once(num_windows: int, sequence_length: int, seed: int, index_of_pass: int) -> None:
    corpus = Corpus(numbered_text(num_windows, sequence_length + 1), sequence_length, seed)
    first = index_of_pass * num_windows
    inputs_BT, targets_BT = corpus.batch(range(first, first + num_windows))
    starts = 256 * inputs_BT[:, 0] + targets_BT[:, 0]
    assert sorted(starts.tolist()) == list(range(num_windows))


@settings(deadline=None)
@given(**shapes, samples=st.lists(st.integers(0, 2000), min_size=1, max_size=20))
def test_the_same_seed_gives_the_same_samples_however_they_are_asked_for(
    num_windows: int, sequence_length: int, seed: int, samples: list[int]
) -> None:
    text = numbered_text(num_windows, sequence_length + 1)
    corpus = Corpus(text, sequence_length, seed)
    together = [corpus.window(sample) for sample in samples]
    assert together == [Corpus(text, sequence_length, seed).window(sample) for sample in samples]


@settings(deadline=None)
@given(seed=st.integers(0, 2**32))
def test_seeds_and_passes_have_orders_of_their_own(seed: int) -> None:
    text = numbered_text(100, 3)
    orders = [
        [corpus.window(sample) for sample in range(first, first + 100)]
        for corpus in (Corpus(text, 2, seed), Corpus(text, 2, seed + 1))
        for first in (0, 100)
    ]
    assert len({tuple(order) for order in orders}) == 4


def test_a_batch_is_the_text_and_the_text_one_byte_on() -> None:
    text = b"Break a real training run at an exact step."
    corpus = Corpus(text, 5, seed=3)
    inputs_BT, targets_BT = corpus.batch(range(4))
    assert inputs_BT.dtype == targets_BT.dtype == torch.int64
    for sample in range(4):
        start = 6 * corpus.window(sample)
        assert bytes(inputs_BT[sample].tolist()) == text[start : start + 5]
        assert bytes(targets_BT[sample].tolist()) == text[start + 1 : start + 6]


def test_a_batch_can_cross_from_one_pass_to_the_next() -> None:
    corpus = Corpus(numbered_text(10, 3), 2, seed=0)
    crossing, _ = corpus.batch(range(8, 12))
    alone = torch.cat([corpus.batch([sample])[0] for sample in range(8, 12)])
    assert torch.equal(crossing, alone)


def test_steps_cover_the_samples_without_gap_or_overlap() -> None:
    samples = [sample for step in range(1, 6) for sample in samples_of_step(step, 7)]
    assert samples == list(range(35))


@settings(deadline=None)
@given(st.integers(0, 2**40))
def test_checksums_fit_into_36_bits(sample: int) -> None:
    assert 0 <= sample_checksum(sample) < 2**36


def test_checksums_of_many_samples_differ_and_sum_exactly_in_float64() -> None:
    checksums = [sample_checksum(sample) for sample in range(100_000)]
    # 10^5 draws from 2^36 values collide 0.07 times on average.
    assert len(set(checksums)) > 99_995
    assert 0.49 < sum(checksums) / len(checksums) / 2**36 < 0.51
    assert int(torch.tensor(checksums, dtype=torch.float64).sum()) == checksum(range(100_000))


@settings(deadline=None)
@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=30, unique=True), st.data())
def test_a_skipped_or_repeated_sample_shows_in_the_checksum(samples: list[int], data: st.DataObject) -> None:
    skipped = data.draw(st.sampled_from(samples))
    others = [sample for sample in samples if sample != skipped]
    repeated = data.draw(st.sampled_from(others))
    assert checksum(others) != checksum(samples)
    assert checksum([*others, repeated]) != checksum(samples)
    assert checksum(samples[::-1]) == checksum(samples)


def test_the_default_text_is_the_standard_library() -> None:
    text = read_corpus(None)
    assert 1_000_000 < len(text) <= MAX_STANDARD_LIBRARY_BYTES
    assert b"def " in text
    assert read_corpus(None) is text


def test_text_is_checked_without_torch() -> None:
    program = (
        "import sys; from mecefo_runtime.model.data import read_corpus; "
        "read_corpus(None); print('torch' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert output.stdout == "False\n"


def test_a_file_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes("für alle\n".encode())
    assert read_corpus(str(path)) == "für alle\n".encode()


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    for name, content in {
        "b.txt": b"second",
        "a.txt": b"first",
        "c/d.txt": b"third",
        ".hidden": b"hidden",
        ".git/config": b"hidden",
        "image.png": b"\x89PNG\xff",
        "table.bin": b"\0\0\0\0",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    assert read_corpus(str(tmp_path)) == b"first\nsecond\nthird"


def test_a_relative_path_is_read_where_the_process_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.txt").write_text(name)
        monkeypatch.chdir(tmp_path / name)
        assert read_corpus("text.txt") == name.encode()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.txt", None, "does not exist"),
        ("empty.txt", b"", "is empty"),
        ("latin.txt", b"f\xfcr", "is not UTF-8 text"),
        ("zeros.txt", b"ab\0", "is not UTF-8 text"),
        ("n\0l", None, "cannot be read"),
    ],
)
def test_an_unusable_file_is_named(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_corpus(str(path))
    assert str(caught.value).startswith(f"{path} {message}")
    assert ": " in str(caught.value)  # and what to do about it


def test_an_unreadable_path_is_named(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(DataError, match="loop cannot be read"):
        read_corpus(str(loop))


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="neither a file nor a folder"):
        read_corpus(str(tmp_path / "pipe"))


def test_a_folder_without_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(b"\x89PNG\xff")
    (tmp_path / "empty.txt").touch()
    with pytest.raises(DataError, match=f"{tmp_path} has no UTF-8 text file"):
        read_corpus(str(tmp_path))


def test_a_text_shorter_than_a_sequence_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_bytes(b"x" * 64)
    assert read_corpus(str(path), sequence_length=63)
    with pytest.raises(DataError, match="has 64 bytes of text, a sequence needs 65"):
        read_corpus(str(path), sequence_length=64)
    with pytest.raises(DataError, match="64 bytes of text are too few"):
        Corpus(b"x" * 64, sequence_length=64, seed=0)
