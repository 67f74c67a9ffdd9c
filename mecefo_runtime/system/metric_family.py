"""Families of Prometheus metrics: each is described once, for the exporter and for the reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from prometheus_client import Metric


@dataclass(frozen=True, slots=True)
class Family:
    """A family: its name as it is exported, its type, what it means (in Markdown), and its own labels."""

    name: str
    kind: Literal["gauge", "counter", "histogram", "info"]
    text: str
    labels: tuple[str, ...] = ()

    def of(self, values: Mapping[Any, float | None], **common: str) -> Iterator[Metric]:
        """The family of a gauge or counter, with a sample for each value that is known; nothing without one.

        Args:
            values: by the tuple of the values of `labels`; None: unknown.
            common: labels that all samples have in addition.
        """
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        kind = GaugeMetricFamily if self.kind == "gauge" else CounterMetricFamily
        family = kind(self.name, self._help, labels=(*common, *self.labels))
        for labels, value in values.items():
            if value is not None:
                family.add_metric((*common.values(), *labels), value)
        if family.samples:
            yield family

    def of_labels(self, labels: Mapping[str, str], **common: str) -> Metric:
        """The family of an info, whose value is 1."""
        from prometheus_client.core import InfoMetricFamily

        family = InfoMetricFamily(self.name.removesuffix("_info"), self._help, labels=tuple(common))
        family.add_metric(tuple(common.values()), dict(labels))
        return family

    def of_buckets(self, buckets: Sequence[tuple[str, float]], total: float, **common: str) -> Metric:
        """The family of a histogram: (upper bound, number of values up to it), and the sum of the values."""
        from prometheus_client.core import HistogramMetricFamily

        family = HistogramMetricFamily(self.name, self._help, labels=tuple(common))
        family.add_metric(tuple(common.values()), list(buckets), total)
        return family

    @property
    def _help(self) -> str:
        return self.text.replace("`", "")


def by_name(*families: Family) -> Mapping[str, Family]:
    """The families by their names."""
    return {family.name: family for family in families}
