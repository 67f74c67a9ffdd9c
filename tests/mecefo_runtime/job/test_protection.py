"""Groups and rows: every node is in one group, every stripe in one row, and a row has one part of each node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.job.protection import NUM_PARITIES, Group, groups_of

pytestmark = pytest.mark.unit

groups = st.builds(
    lambda nodes, num_parities: Group(tuple(nodes), min(num_parities, len(nodes) - 1)),
    st.lists(st.integers(0, 99), min_size=2, max_size=9, unique=True),
    st.integers(1, 2),
)


@given(groups)
def test_every_stripe_is_in_one_row_and_every_row_has_each_node_once(group: Group) -> None:
    for row in range(len(group.nodes)):
        assert sorted((*group.parity_nodes(row), *group.data_nodes(row))) == sorted(group.nodes)
        for node in group.data_nodes(row):
            assert group.row_of(node, group.stripe_of(node, row)) == row
        for node in group.parity_nodes(row):
            with pytest.raises(ValueError, match="holds a parity"):
                group.stripe_of(node, row)
    for node in group.nodes:
        rows = [group.row_of(node, stripe) for stripe in range(group.num_data)]
        assert len(set(rows)) == group.num_data
        for row, index in group.rows_of_parity(node):
            assert group.parity_nodes(row)[index] == node
        assert {*rows, *(row for row, _ in group.rows_of_parity(node))} == set(range(len(group.nodes)))


@given(
    st.frozensets(st.integers(0, 63), max_size=40),
    st.sampled_from(sorted(NUM_PARITIES)),
    st.integers(2, 9),
    st.none() | st.integers(1, 9),
)
def test_every_node_is_in_one_group_that_is_as_strong_as_it_can_be(nodes, protection, size, nodes_per_rack) -> None:
    found = groups_of(nodes, protection, size, nodes_per_rack)
    assert sorted(node for group in found for node in group.nodes) == sorted(nodes)
    for group in found:
        assert group.num_parities == min(NUM_PARITIES[protection], len(group.nodes) - 1)
        if protection in ("xor", "pq"):
            assert len(group.nodes) <= 2 * size - 1
            assert len(group.nodes) >= min(size, len(nodes))


def test_the_nodes_of_a_rack_are_in_different_groups() -> None:
    """A rack is lost as a whole: of any group that costs one node."""
    found = groups_of(range(16), "xor", 4, nodes_per_rack=4)
    assert len(found) == 4
    for group in found:
        assert sorted(node // 4 for node in group.nodes) == [0, 1, 2, 3]


def test_two_nodes_hold_each_other_whole() -> None:
    (group,) = groups_of((3, 7), "copy", 4)
    assert (group.num_data, group.rows_of_parity(3)) == (1, ((0, 0),))
    assert group.data_nodes(0) == (7,)


@given(
    st.integers(1, 40),
    st.sampled_from(["copy", "xor", "pq"]),
    st.integers(2, 9),
    st.none() | st.integers(1, 9),
    st.lists(st.frozensets(st.integers(0, 39), max_size=5), max_size=20),
)
def test_who_is_kept_apart_takes_nothing_from_racks_and_sizes(num_nodes, protection, size, per_rack, apart) -> None:
    found = groups_of(range(num_nodes), protection, size, per_rack, apart)
    assert sorted(node for group in found for node in group.nodes) == list(range(num_nodes))
    plain = groups_of(range(num_nodes), protection, size, per_rack)
    assert sorted(len(group.nodes) for group in found) == sorted(len(group.nodes) for group in plain)
    for rack in range(num_nodes // (per_rack or num_nodes) + 1):
        spread = [sum(node // (per_rack or num_nodes) == rack for node in group.nodes) for group in found]
        assert max(spread) - min(spread) <= 1


def test_nodes_that_hold_the_same_are_in_different_groups() -> None:
    pairs = [(node, node + 8) for node in range(8)]
    together = [sum({*pair} <= {*group.nodes} for group in groups_of(range(16), "xor", 4)) for pair in pairs]
    assert sum(together) == 8
    found = groups_of(range(16), "xor", 4, apart=pairs)
    assert not any({*pair} <= {*group.nodes} for pair in pairs for group in found)
