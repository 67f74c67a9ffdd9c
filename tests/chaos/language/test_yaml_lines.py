import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from chaos.errors import UsageError
from chaos.language.yaml_lines import MAX_BYTES, Dumper, parse, plain, read, shown_key

pytestmark = pytest.mark.unit

BOMB = "a: &a [x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 8)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def test_values_and_lines():
    document = parse("name: x\njob:\n  steps: 3\nfaults:\n  - kind: a\n    on: b\n  - kind: c\n", "f.yaml")
    assert document.values == {"name": "x", "job": {"steps": 3}, "faults": [{"kind": "a", "on": "b"}, {"kind": "c"}]}
    assert document.path == "f.yaml"
    places = {("name",): 1, ("job",): 2, ("job", "steps"): 3, ("faults", 0, "on"): 6, ("faults", 1): 7}
    assert {where: document.lines[where] for where in places} == places


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("0100", 100),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("-3", -3),
        ("1e3", 1000.0),
        ("3e-3", 0.003),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("2024-99-99", "2024-99-99"),
        ("'5'", "5"),
        ("60steps", "60steps"),
        ("|\n  two\n  lines\n", "two\nlines\n"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text, value):
    read_value = parse(f"on: {text}").values["on"]
    assert read_value == value
    assert type(read_value) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("on", "on"), ("", None), ("1e3", 1000.0), ("true", True), ("[1]", "[1]"), ("a: b", "a: b")],
)
def test_a_text_as_a_plain_scalar(text, value):
    assert plain(text) == value
    assert type(plain(text)) is type(value)


@pytest.mark.parametrize("text", ["9" * 30, "<<", "a\udcff"])
def test_a_text_that_no_file_can_have(text):
    with pytest.raises(UsageError, match="cannot be used here") as refused:
        plain(text)
    assert refused.value.line is None


@pytest.mark.parametrize(
    ("key", "text"), [("job", "job"), ("it's", "it's"), ("a\x1b", r"'a\x1b'"), ("a\u202eb", r"'a\u202eb'"), ("", "")]
)
def test_a_key_is_named_so_that_a_terminal_can_show_it(key, text):
    assert shown_key(key) == text


def test_a_long_key_is_cut():
    assert len(shown_key("x" * 5000)) == 60


def test_anchors_and_merges():
    document = parse("b: &b {x: 1, y: 3}\nc:\n  <<: *b\n  y: 2\nd: *b\ne: {<<: [{x: 8}, *b], z: 0}\n")
    assert document.values["c"] == {"x": 1, "y": 2}
    assert document.values["d"] == {"x": 1, "y": 3}
    assert document.values["e"] == {"x": 8, "y": 3, "z": 0}
    assert document.lines["c", "y"] == 4


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ("", None, "the file is empty"),
        ("# only a comment\n", None, "the file is empty"),
        ("- a\n- b\n", 1, "an experiment is a mapping"),
        ("just text", 1, "an experiment is a mapping"),
        ("a: 1\nb: 2\na: 3\n", 3, "a: duplicate key; the first one is on line 1"),
        ("a:\n  b: 1\n  b: 1\n", 3, "duplicate key"),
        ("a: 1\n5: 2\n", 2, "a key must be text, not '5'"),
        ("~: 1\n", 1, "a key must be text"),
        ("true: 1\n", 1, "a key must be text"),
        ("? [a]\n: b\n", 1, "a key must be text, not 'a list or mapping'"),
        ("a: [1,\n", 2, "not YAML"),
        ("a: *b\n", 1, "not YAML: found undefined alias"),
        ("a: b: c\n", 1, "not YAML: mapping values are not allowed here"),
        ("a:\n\t- b\n", 2, "not YAML"),
        ("a: 1\n---\nb: 1\n", 2, "not YAML"),
        ("a: !!python/object:os.system x\n", 1, "cannot be used here"),
        ("a: !!binary zz\n", 1, "cannot be used here"),
        ("a: !!int zz\n", 1, "cannot be used here"),
        ("a: !!float zz\n", 1, "cannot be used here"),
        ("a: 99999999999999999999\n", 1, "cannot be used here"),
        ('a: "\\uD800"\n', 1, "cannot be used here"),
        ('a: "\\UFFFFFFFF"\n', None, "not YAML"),
        ("<<: 5\n", 1, "`<<` takes a mapping"),
        (BOMB, None, "values, aliases unfolded"),
        ("a: &a [*a]\n", 1, "levels deep"),
        ("a: &a {b: *a}\n", 1, "levels deep"),
        ("a: &a {<<: *a}\n", 1, "levels deep"),
        ("[" * 100_000, 1, "levels deep"),
        ("{" * 3_000, 1, "levels deep"),
        ("- " * 5_000, 1, "levels deep"),
        ("a: [" + "1," * 30_000 + "]", 1, "more than 20000 values"),
        ("x" * (MAX_BYTES + 1), None, "too large"),
        (b"\x00\x01\x02", None, "not YAML"),
        (b"\x7fELF\x02\x01\x01\xff\xfe", 1, "not encoded in UTF-8"),
        ("a: 1\n".encode("utf-16"), 1, "not encoded in UTF-8"),
        ("a: \ud800", 1, "not encoded in UTF-8"),
    ],
)
def test_refuses(content, line, message):
    with pytest.raises(UsageError) as refused:
        parse(content, "f.yaml")
    assert message in str(refused.value)
    assert str(refused.value).startswith("f.yaml")
    assert line is None or refused.value.line == line


def test_byte_order_mark_is_no_mistake():
    assert parse(b"\xef\xbb\xbfa: 1").values == {"a": 1}


@pytest.mark.parametrize(
    ("name", "message"),
    [("missing.yaml", "No such file"), (".", "directory"), ("a\0b", "null"), ("x" * 300, "too long")],
)
def test_unreadable_files(tmp_path, name, message):
    with pytest.raises(UsageError, match=message):
        read(tmp_path / name)


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**15), 10**15),
        st.floats(allow_nan=False),
        st.sampled_from(["on", "off", "1e3", "<<"]),
        st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text("abno", min_size=1, max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abno", min_size=1, max_size=2), VALUES, min_size=1, max_size=3))
def test_what_the_dumper_writes_is_read_again(values):
    assert parse(yaml.dump(values, Dumper=Dumper, allow_unicode=True)).values == values
