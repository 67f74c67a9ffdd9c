import pytest
from pydantic import ValidationError

from chaos.experiment.limits import Limits
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.reason import Reason

pytestmark = pytest.mark.unit

CLUSTER = Cluster(nodes=4, gpus_per_node=2, data_parallel=4, pipeline=2, num_layers=4, num_microbatches=16)


@pytest.mark.parametrize(("said", "ratio"), [("50%", 0.5), ("0%", 0.0), ("12.5 %", 0.125), (0.25, 0.25), (1, 1.0)])
def test_a_share_is_a_percentage_or_a_number(said, ratio):
    assert Limits.model_validate({"min_healthy": said}).min_healthy == ratio


@pytest.mark.parametrize("said", ["50", "101%", "-1%", "nan%", "%", "x%", "٥٠%", 1.1, -0.1, float("nan"), True, []])
def test_what_is_no_share_is_refused(said):
    with pytest.raises(ValidationError, match="must be 0% to 100%"):
        Limits.model_validate({"min_healthy": said})


@pytest.mark.parametrize(
    ("limits", "affected", "violation"),
    [
        ({}, range(8), None),
        ({"max_nodes": 1}, (2, 3), None),
        ({"max_nodes": 1}, (2, 4), Reason("max_nodes", nodes=2, limit=1)),
        ({"max_ranks": 3}, (0, 1, 2), None),
        ({"max_ranks": 3}, (0, 1, 2, 3), Reason("max_ranks", ranks=4, limit=3)),
        ({"max_ranks": 3}, (0, 0, 0, 0), None),
        ({"min_healthy": "50%"}, (0, 1, 2, 3), None),
        ({"min_healthy": "50%"}, (0, 1, 2, 3, 4), Reason("min_healthy", healthy=3, ranks=8, limit=0.5)),
        ({"min_healthy": 1}, (), None),
        ({"min_healthy": 1}, (0,), Reason("min_healthy", healthy=7, ranks=8, limit=1.0)),
    ],
)
def test_what_is_beyond_is_said(limits, affected, violation):
    assert Limits.model_validate(limits).violation(affected, CLUSTER) == violation
