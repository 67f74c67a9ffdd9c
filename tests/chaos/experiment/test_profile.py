from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.errors import UsageError
from chaos.experiment.profile import PROFILES, FailureClass, ProfileSpec, coverage, draw, time_compression
from mecefo_runtime.system.json_values import to_json
from tests.chaos.fake_faults import REGISTRY

pytestmark = pytest.mark.unit

LLAMA3 = PROFILES["llama3"]


class TestSpec:
    @pytest.mark.parametrize(
        ("value", "spec"),
        [
            ("llama3", ProfileSpec("llama3")),
            ("llama3:10", ProfileSpec("llama3", 10)),
            ({"name": "failslow"}, ProfileSpec("failslow")),
            ({"name": "llama3", "failures": 10}, ProfileSpec("llama3", 10)),
        ],
    )
    def test_reads(self, value, spec):
        assert ProfileSpec.parse(value) == spec
        assert ProfileSpec.parse(str(spec)) == spec

    @pytest.mark.parametrize(
        ("value", "key", "message"),
        [
            ("lama3", None, "there is no profile 'lama3': there are llama3, failslow (did you mean 'llama3'?)"),
            ("llama3:0", None, "0 failures: a run has 1 to 1000"),
            ("llama3:", None, "failures must be a whole number from 1, not ''"),
            ("llama3:ten", None, "not 'ten'"),
            ({"name": "llama3", "failures": 1001}, None, "a run has 1 to 1000"),
            ({"name": "llama3", "failures": None}, "failures", "not null"),
            ({"name": "llama3", "failurs": 3}, "failurs", "(did you mean 'failures'?)"),
            ({"failures": 3}, "name", "must be one of llama3, failslow, not null"),
            (["llama3"], None, "is no profile"),
            (3, None, "3 is no profile"),
        ],
    )
    def test_refuses(self, value, key, message):
        with pytest.raises(UsageError) as refused:
            ProfileSpec.parse(value)
        assert message in str(refused.value).removeprefix(f"{key}: ")
        assert refused.value.key == key

    @pytest.mark.parametrize(("num_steps", "num_failures"), [(1, 1), (60, 1), (560, 9), (10**8, 1000)])
    def test_how_many_where_nothing_is_said(self, num_steps, num_failures):
        assert ProfileSpec("llama3").num_failures(num_steps) == num_failures
        assert ProfileSpec("llama3", 3).num_failures(num_steps) == 3


def test_the_counts_are_those_that_were_published():
    assert sum(failure.count for failure in LLAMA3.classes) == LLAMA3.num_failures == 419


class TestCoverage:
    def test_all_of_it(self):
        kinds = {failure.kind: REGISTRY["kill-process"] for failure in LLAMA3.classes}
        covered = coverage(LLAMA3, kinds, (), num_nodes=4)
        assert (covered.classes, covered.left_out, covered.left_out_ratio) == (LLAMA3.classes, (), 0.0)

    def test_what_is_not_there_is_named_with_its_share(self):
        covered = coverage(LLAMA3, REGISTRY, (), num_nodes=4)
        assert [failure.kind for failure in covered.classes] == [
            "kill-process",
            "kill-node",
            "slow-rank",
            "kill-process",
        ]
        assert [why for _, why in covered.left_out] == [
            "segfault is not installed",
            "drop-link needs links, root",
            "hang-gil is not installed",
            "bit-flip is not installed",
        ]
        assert covered.left_out_ratio == (54 + 42 + 24 + 6) / 419

    def test_links_need_two_nodes_and_their_needs(self):
        for capabilities, num_nodes, can in (
            (("links", "root"), 2, True),
            (("links",), 2, False),
            (("links", "root"), 1, False),
        ):
            kinds = {failure.kind for failure in coverage(LLAMA3, REGISTRY, capabilities, num_nodes=num_nodes).classes}
            assert ("drop-link" in kinds) is can

    def test_what_has_to_be_told_its_parameters_is_left_out(self):
        covered = coverage(PROFILES["failslow"], REGISTRY, ("links",), num_nodes=4)
        assert [why for _, why in covered.left_out] == ["slow-link has parameters without a default"]
        assert covered.left_out_ratio == 40 / 42


class TestDraw:
    def test_by_the_counts(self):
        counts = Counter(draw(LLAMA3.classes, 100, Random(seed)).failure_class.name for seed in range(4190))
        for failure in LLAMA3.classes:
            expected = 10 * failure.count
            assert abs(counts[failure.name] - expected) < 5 * expected**0.5, failure.name

    @given(st.integers(0, 2**32), st.integers(1, 10**8))
    def test_at_a_step_of_the_job(self, seed, num_steps):
        failure = draw(LLAMA3.classes, num_steps, Random(seed))
        assert 1 <= failure.step <= num_steps
        assert failure == draw(LLAMA3.classes, num_steps, Random(seed))

    def test_every_step_can_be_hit(self):
        only = (FailureClass("it", 1, "kill-node"),)
        assert {draw(only, 3, Random(seed)).step for seed in range(40)} == {1, 2, 3}


class TestTimeCompression:
    def test_of_eight_ranks(self):
        compression = time_compression("llama3", 8, 10, 3600.0)
        # 54 days x 16,384 GPUs / 419 failures = 2,111.5 GPU-days each; ten of them on eight GPUs, in an hour.
        assert compression.real_days_per_failure == pytest.approx(54 * 16_384 / 419 / 8)
        assert compression.ratio == pytest.approx(10 * (54 * 16_384 / 419 / 8) * 24)
        assert str(compression) == (
            "8 ranks fail once in 264 days at the rate of llama3; this run was 63,346 times as fast"
        )

    @pytest.mark.parametrize(("num_ranks", "text"), [(8, "264 days"), (1024, "2.1 days"), (16_384, "3.1 hours")])
    def test_reads_as_people_say_it(self, num_ranks, text):
        compression = time_compression("llama3", num_ranks, 1)
        assert str(compression) == f"{num_ranks} ranks fail once in {text} at the rate of llama3"
        assert (compression.ratio, compression.wall_seconds) == (None, None)
        assert to_json(compression)["num_ranks"] == num_ranks

    def test_a_real_cluster_is_not_compressed(self):
        assert time_compression("llama3", 16_384, 419, 54 * 86_400.0).ratio == pytest.approx(1.0)

    def test_is_unknown_without_a_rate(self):
        assert time_compression("failslow", 8, 10, 3600.0) is None
