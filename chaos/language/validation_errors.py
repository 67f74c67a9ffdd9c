"""What pydantic finds wrong with a user's text, in the user's words and with the place where it was said."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from chaos.errors import UsageError, all_of, in_terms, nearest, shown
from chaos.language.yaml_lines import KeyPath, Mistake, shown_key

_USAGE = "usage"
# The alias of `Experiment.backend_settings`; a YAML file cannot have this key.
BACKEND_SETTINGS = "\0settings"
# As `_key_text` writes a place, options (`--at`) not among them.
_KEY_TEXT = re.compile(r"\w+(\[[0-9]+\]|\.\w+)*")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Source:
    """Where an experiment was said: in a file, of which `lines` gives the places, or by command-line `options`.

    An option that is empty is one that need not be named: of the only fault, say. `terms` are the options by which a
    command line says what a file says by keys: what a message advises is told in them where there is no file.
    """

    path: str | None = None
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    options: Mapping[KeyPath, str] = field(default_factory=dict)
    terms: Mapping[str, str] = field(default_factory=dict)

    def problem(self, where: KeyPath, message: str, suggestion: str | None = None) -> UsageError:
        """The mistake at key path `where`, with the option or else the line and the key where it was said."""
        message = in_terms(message, self._option_of)
        outwards = [where[:end] for end in range(len(where), -1, -1)]
        option = next((self.options[place] for place in outwards if place in self.options), None)
        if option is not None:
            return UsageError(message, key=option or None, suggestion=suggestion)
        line = next((self.lines[place] for place in outwards if place in self.lines), None)
        return UsageError(message, path=self.path, line=line, key=_key_text(where), suggestion=suggestion)

    def _option_of(self, key: str) -> str | None:
        """By which option the setting `key` was said, or would be."""
        return self.options.get(key_path(key)) or (self.terms.get(key) if self.path is None else None)

    @contextmanager
    def locating(self) -> Iterator[None]:
        """What is refused meanwhile by its key alone, by whoever was given the experiment, gets its place."""
        try:
            yield
        except UsageError as error:
            raise all_of([self.located(problem) for problem in error.problems]) from error

    def located(self, problem: UsageError) -> UsageError:
        """`problem` with its place, unless it has one or names no key of an experiment."""
        if problem.path is not None or problem.line is not None:
            return problem
        if problem.key is None or not _KEY_TEXT.fullmatch(problem.key):
            message = in_terms(problem.message, self._option_of)
            return UsageError(message, key=problem.key, suggestion=problem.suggestion)
        return self.problem(key_path(problem.key), problem.message, problem.suggestion)

    def placed(self, error: UsageError, where: KeyPath) -> UsageError:
        """`error`, which has no place yet: at `where`, or at the part of it that it names."""
        return self.problem((*where, error.key) if error.key else where, error.message, error.suggestion)


class Problems:
    """The mistakes found so far in what a `source` says. What rests on something mistaken is not judged."""

    def __init__(self, source: Source, mistakes: Sequence[Mistake] = ()) -> None:
        self.source = source
        self.errors: list[UsageError] = []
        self.places: set[KeyPath] = set()
        # Everything around one of them.
        self._around: set[KeyPath] = set()
        for where, error in mistakes:
            self.note(where, error)

    def note(self, where: KeyPath, error: UsageError) -> None:
        """Take in the `error`, which has its place, about what stands at `where`."""
        self.errors.append(error)
        self.distrust(where)
        if error.suggestion is not None:
            # Probably it is that which was to be said.
            self.distrust((*where[:-1], error.suggestion))

    def distrust(self, where: KeyPath) -> None:
        """Judge nothing by what stands there."""
        self.places.add(where)
        self._around.update(where[:end] for end in range(len(where)))

    def add(
        self, where: KeyPath, message: str, suggestion: str | None = None, *, rests_on: Sequence[KeyPath] = ()
    ) -> None:
        """Something contradicts what stands at each of `rests_on`: told at `where`, if all of that could be read."""
        if self.are_sound(where, *rests_on):
            self.errors.append(self.source.problem(where, message, suggestion))

    def are_sound(self, *places: KeyPath) -> bool:
        """Whether no mistake is noted at one of them, within it or around it."""
        return not any(
            place in self._around or any(place[:end] in self.places for end in range(len(place) + 1))
            for place in places
        )


def said(parse: Callable[[object], T]) -> Callable[[object], T]:
    """`parse` as a validator: its UsageErrors become pydantic's, from which `explain` makes them again."""

    def validate(value: object) -> T:
        try:
            return parse(value)
        except UsageError as error:
            context = {"message": error.message, "key": error.key, "suggestion": error.suggestion}
            raise PydanticCustomError(_USAGE, "{message}", context) from error

    return validate


def explain(
    error: ValidationError, source: Source, words: Mapping[tuple[str, ...], Collection[str]], prefix: KeyPath = ()
) -> list[Mistake]:
    """One mistake for each finding of pydantic.

    `words` gives the keys that a mapping may have, by the path of the mapping without the indices of lists.
    """
    return [
        (where, _explain(details, source, words, where))
        for details in error.errors(include_url=False)
        for where in [(*prefix, *said_at(details["loc"]))]
    ]


def _explain(
    details: ErrorDetails, source: Source, words: Mapping[tuple[str, ...], Collection[str]], where: KeyPath
) -> UsageError:
    context: Mapping[str, Any] = details.get("ctx", {})
    if details["type"] == _USAGE:
        return source.placed(
            UsageError(context["message"], key=context["key"], suggestion=context["suggestion"]), where
        )
    if details["type"] == "extra_forbidden":
        known = words.get(tuple(part for part in where[:-1] if isinstance(part, str)), ())
        suggestion = nearest(str(where[-1]), known)
        others = "" if suggestion else f": here are {', '.join(known)}" if known else ": nothing belongs here"
        return source.problem(where, f"unknown key{others}", suggestion)
    if details["type"] == "literal_error" and where == ("job", "runtime"):
        # The model that found it is the one of our own runtime, which knows no other.
        return source.problem(where, f"must be 'mecefo' or 'command', not {shown(details['input'])}")
    if details["type"] == "literal_error":
        guess = nearest(str(details["input"]), re.findall(r"'([^']+)'", context["expected"]))
        return source.problem(where, f"must be {context['expected']}, not {shown(details['input'])}", guess)
    wanted = _WANTED.get(details["type"])
    if details["type"] == "missing":
        return source.problem(where, f"is missing{_EXAMPLES.get(where[-1], '')}")
    if wanted is None:
        return source.problem(where, f"{details['msg'][:1].lower()}{details['msg'][1:]}, not {shown(details['input'])}")
    return source.problem(where, f"must be {wanted.format(**context)}, not {shown(details['input'])}")


def said_at(location: Sequence[str | int]) -> Sequence[str | int]:
    """Where the user said what pydantic found there.

    It puts the name of the model that it chose behind `job`, and the settings of backends into one field.
    """
    if location[:1] == (BACKEND_SETTINGS,):
        return location[1:]
    return (location[0], *location[2:]) if location[:1] == ("job",) and len(location) > 1 else location


_WANTED: Mapping[str, str] = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "a mapping (lines of the form `key: value`)",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number that is not as large",
    "int_type": "a whole number",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "list_type": "a list (lines of the form `- item`)",
    "model_type": "a mapping (lines of the form `key: value`)",
    "too_long": "at most {max_length} items long",
    "string_too_long": "at most {max_length} characters long",
    "string_too_short": "a text that is not empty",
    "string_type": "text",
}


_EXAMPLES: Mapping[str | int, str] = {
    "at": ": say when, such as step=100 or time=10s",
    "every_steps": ": say every how many steps one is written, such as 20",
    "groups": ": say which ranks can still reach each other, such as 0,1|2,3 or 0,1,coordinator|2,3",
    "kind": ": say which fault; `chaos faults` lists them",
    "name": ": give the experiment a name",
}


def key_path(text: str) -> KeyPath:
    """The place that a key names: ("faults", 0, "on") for `faults[0].on`."""
    parts = re.findall(r"[^.\[\]]+", text)
    return tuple(int(part) if part.isdigit() else part for part in parts)


def _key_text(where: Sequence[str | int]) -> str | None:
    """`faults[0].on` for ("faults", 0, "on")."""
    text = ""
    for part in where:
        said = part if isinstance(part, int) else shown_key(part)
        text += f"[{said}]" if isinstance(part, int) else f".{said}" if text else str(said)
    return text or None
