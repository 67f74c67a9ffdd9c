"""Triggers within the save of a checkpoint."""

from __future__ import annotations

import pytest

from chaos.errors import UsageError
from chaos.language.trigger import Trigger

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "announced", "is_open"),
    [
        ("step=20,phase=checkpoint,after=file", "checkpoint/file", False),
        ("step=20,phase=checkpoint,after=rename", "checkpoint/rename", False),
        ("step=20,phase=checkpoint,after=1000000B", "checkpoint/bytes", False),
        ("step=20,phase=checkpoint,during=async", "checkpoint/async", True),
    ],
)
def test_a_moment_of_a_save_is_of_the_phase_checkpoint(text: str, announced: str, is_open: bool) -> None:
    trigger = Trigger.parse(text)
    assert (str(trigger), trigger.announced, trigger.is_open) == (text, announced, is_open)
    assert Trigger.parse(text.replace(",phase=checkpoint", "")) == trigger


def test_a_size_is_in_bytes() -> None:
    moment = Trigger.parse("step=20,after=1.5MB").in_save
    assert moment is not None
    assert moment.num_bytes == 1_500_000


@pytest.mark.parametrize(
    ("text", "key", "suggestion"),
    [
        ("step=20,after=fille", "after", "file"),
        ("step=20,after=renamed", "after", "rename"),
        ("step=20,after=10", "after", None),
        ("step=20,after=10megs", "after", None),
        ("step=20,after", "after", None),
        ("step=20,during=asinc", "during", "async"),
        ("step=20,after=file,during=async", "during", None),
        ("step=20,phase=forward,after=file", "phase", None),
        ("time=10s,after=file", "time", None),
        ("after=file", "after", None),
        ("step=20,aftr=file", None, "after"),
    ],
)
def test_nonsense_is_refused_with_the_nearest_word(text: str, key: str | None, suggestion: str | None) -> None:
    with pytest.raises(UsageError) as refused:
        Trigger.parse(text)
    assert (refused.value.key, refused.value.suggestion) == (key, suggestion)
