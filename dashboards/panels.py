"""Panels in one look: big numbers, charts, bands of states, tables, bars.

Built with grafana-foundation-sdk for the schema of Grafana 10.1; later versions read it and bring it up to their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, Self, TypeVar

from grafana_foundation_sdk.builders import barchart, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders import common as look
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import common, dashboard

from dashboards.queries import DATASOURCE, query

GREEN, YELLOW, ORANGE, RED, BLUE, PURPLE, GREY = "green", "yellow", "orange", "red", "blue", "purple", "#808080"

# Of the 24 columns of Grafana's grid; a row of it is about 30 pixels high.
STAT_ROWS, CHART_ROWS = 4, 8


class _Styled(Protocol):
    """What the builders of all kinds of panels have in common, as far as we use it."""

    def title(self, title: str) -> Self: ...
    def description(self, description: str) -> Self: ...
    def datasource(self, datasource: dashboard.DataSourceRef) -> Self: ...
    def height(self, h: int) -> Self: ...
    def span(self, w: int) -> Self: ...
    def with_target(self, target: prometheus.Dataquery) -> Self: ...
    def unit(self, unit: str) -> Self: ...
    def thresholds(self, thresholds: build.ThresholdsConfig) -> Self: ...
    def no_value(self, no_value: str) -> Self: ...


_P = TypeVar("_P", bound=_Styled)


def number(
    title: str,
    description: str,
    expression: str,
    *,
    unit: str,
    thresholds: build.ThresholdsConfig,
    is_instant: bool = False,
    legend: str = "{{experiment}}",
    width: int = 4,
) -> stat.Panel:
    """The newest value as a big number, one for each run that is chosen.

    `is_instant`: it is about all runs in the time that is shown, and asked for once, at its end.
    """
    panel = (
        stat.Panel()
        .graph_mode(common.BigValueGraphMode.NONE)
        .color_mode(common.BigValueColorMode.VALUE)
        .color_scheme(build.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS))
        .reduce_options(look.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False))
    )
    target = query(expression, title).instant() if is_instant else query(expression, legend)
    styled = _styled(panel, title, description, [target], unit, thresholds, width)
    return styled.height(STAT_ROWS)


def chart(
    title: str,
    description: str,
    *queries: prometheus.Dataquery,
    unit: str,
    thresholds: build.ThresholdsConfig | None = None,
    width: int = 12,
    is_stacked: bool = False,
    is_stepped: bool = False,
    is_points: bool = False,
) -> timeseries.Panel:
    """Values over time; thresholds are drawn as lines.

    `is_stepped` for what changes at once and holds: counts, states. `is_points` for what is there now and then.
    """
    panel = (
        timeseries.Panel()
        .line_width(1)
        .fill_opacity(40 if is_stacked else 8)
        .show_points(common.VisibilityMode.ALWAYS if is_points else common.VisibilityMode.NEVER)
        .point_size(6)
        .color_scheme(build.FieldColor().mode(dashboard.FieldColorModeId.PALETTE_CLASSIC))
        .line_interpolation(common.LineInterpolation.STEP_AFTER if is_stepped else common.LineInterpolation.LINEAR)
        .legend(
            look.VizLegendOptions().show_legend(True).placement(common.LegendPlacement.BOTTOM).calcs(["lastNotNull"])
        )
        .tooltip(look.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING))
    )
    if is_points:
        panel.draw_style(common.GraphDrawStyle.POINTS)
    if is_stacked:
        panel.stacking(look.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    if thresholds is not None:
        panel.thresholds_style(look.GraphThresholdsStyleConfig().mode(common.GraphTresholdsStyleMode.DASHED))
    return _styled(panel, title, description, queries, unit, thresholds or steps(GREEN), width).height(CHART_ROWS)


def states(
    title: str,
    description: str,
    *queries: prometheus.Dataquery,
    meaning: Mapping[float, tuple[str, str]],
    width: int = 12,
) -> statetimeline.Panel:
    """A band for each series, in the colour and with the word of its value at the time."""
    panel = (
        statetimeline.Panel()
        .merge_values(True)
        .row_height(0.8)
        .show_value(common.VisibilityMode.AUTO)
        .fill_opacity(80)
        .line_width(0)
        .mappings([words(meaning)])
        .color_scheme(build.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS))
        .legend(look.VizLegendOptions().show_legend(True).placement(common.LegendPlacement.BOTTOM))
    )
    return _styled(panel, title, description, queries, "none", steps(GREY), width).height(CHART_ROWS)


def table_of(
    title: str,
    description: str,
    columns: Mapping[str, str],
    *,
    keys: Mapping[str, str],
    width: int,
    hidden: Sequence[str] = (),
    units: Mapping[str, str] | None = None,
    meanings: Mapping[str, Mapping[float, tuple[str, str]]] | None = None,
) -> table.Panel:
    """Instant queries as columns, one row for each set of labels.

    `columns` are the expressions by column name; `keys` the labels that are shown, by their column names; `hidden`
    labels tell rows apart and are not shown; `units` and `meanings` are those of single columns.
    """
    panel = table.Panel().show_header(True).cell_height(common.TableCellHeight.SM)
    panel.transformations(_as_columns(columns, keys, hidden))
    for name, unit in (units or {}).items():
        panel.override_by_name(name, [dashboard.DynamicConfigValue("unit", unit)])
    for name, meaning in (meanings or {}).items():
        cell = dashboard.DynamicConfigValue("custom.cellOptions", {"type": "color-text"})
        panel.override_by_name(name, [mapped(meaning), cell])
    queries = [query(expression, is_instant=True) for expression in columns.values()]
    return _styled(panel, title, description, queries, "none", steps(GREEN), width).height(CHART_ROWS)


def bars(
    title: str, description: str, columns: Mapping[str, str], *, key: str, heading: str, unit: str, width: int = 12
) -> barchart.Panel:
    """Instant queries as the parts of stacked bars, one bar for each value of the label `key`, named by `heading`."""
    panel = (
        barchart.Panel()
        .orientation(common.VizOrientation.HORIZONTAL)
        .stacking(common.StackingMode.NORMAL)
        .x_field(heading)
        .show_value(common.VisibilityMode.NEVER)
        .fill_opacity(80)
        .legend(look.VizLegendOptions().show_legend(True).placement(common.LegendPlacement.BOTTOM))
        .tooltip(look.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
        .color_scheme(build.FieldColor().mode(dashboard.FieldColorModeId.PALETTE_CLASSIC))
        .transformations(_as_columns(columns, {key: heading}))
    )
    queries = [query(expression, is_instant=True) for expression in columns.values()]
    return _styled(panel, title, description, queries, unit, steps(GREEN), width).height(CHART_ROWS)


def row(title: str) -> build.Row:
    """A heading under which panels stand."""
    return build.Row(title)


def steps(base: str, *above: tuple[float, str]) -> build.ThresholdsConfig:
    """Thresholds: the colour `base`, and from each value of `above` on another one."""
    levels = [dashboard.Threshold(value=None, color=base)]
    levels += [dashboard.Threshold(value=value, color=color) for value, color in above]
    return build.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(levels)


def words(meaning: Mapping[float, tuple[str, str]]) -> dashboard.ValueMap:
    """Values that are shown as (word, colour)."""
    return dashboard.ValueMap(
        {
            f"{value:g}": dashboard.ValueMappingResult(text=text, color=color, index=index)
            for index, (value, (text, color)) in enumerate(meaning.items())
        }
    )


def not_a_number(text: str, color: str) -> dashboard.SpecialValueMap:
    """NaN, shown as this word."""
    result = dashboard.ValueMappingResult(text=text, color=color, index=0)
    match = dashboard.SpecialValueMatch.NA_N
    return dashboard.SpecialValueMap(dashboard.DashboardSpecialValueMapOptions(match=match, result=result))


def mapped(meaning: Mapping[float, tuple[str, str]]) -> dashboard.DynamicConfigValue:
    """The property of an override that shows values as words, for one series."""
    return dashboard.DynamicConfigValue("mappings", [words(meaning)])


def fixed(color: str) -> list[dashboard.DynamicConfigValue]:
    """The properties of an override that gives a series one colour."""
    return [dashboard.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": color})]


def _as_columns(
    columns: Mapping[str, str], keys: Mapping[str, str], hidden: Sequence[str] = ()
) -> list[dashboard.DataTransformerConfig]:
    """Join the queries' rows by their labels, and give the columns their names and order."""
    # Grafana calls the values of an only query plainly so.
    values = ["Value"] if len(columns) == 1 else [f"Value #{_letter(index)}" for index in range(len(columns))]
    names = dict(zip(values, columns, strict=True))
    organize = {
        "excludeByName": dict.fromkeys(("Time", *hidden), True),
        "indexByName": {name: index for index, name in enumerate((*keys, *names))},
        "renameByName": {**keys, **names},
    }
    return [
        dashboard.DataTransformerConfig(id_val="merge", options={}),
        dashboard.DataTransformerConfig(id_val="organize", options=organize),
    ]


def _letter(index: int) -> str:
    return chr(ord("A") + index)


def _styled(
    panel: _P,
    title: str,
    description: str,
    queries: Sequence[prometheus.Dataquery],
    unit: str,
    thresholds: build.ThresholdsConfig,
    width: int,
) -> _P:
    panel.title(title).description(description).datasource(DATASOURCE).unit(unit).thresholds(thresholds)
    panel.span(width).no_value("no data")
    for index, target in enumerate(queries):
        panel.with_target(target.ref_id(_letter(index)))
    return panel
