"""The configuration of Prometheus as it is shipped: promtool's own checks, and that its tests leave no alert out."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.dashboards.reading import DOCS, all_queries, metrics, table_of_metrics
from tests.prometheus import SHIPPED, needs_promtool

pytestmark = pytest.mark.unit

RULES = sorted((SHIPPED / "rules").glob("*.yml"))
TESTS = sorted((SHIPPED / "tests").glob("*.yml"))
# Words of PromQL that are no metrics.
_NOT_METRICS = {
    *("and", "or", "unless", "on", "by", "without", "group_left", "offset", "sum", "max", "rate", "increase", "time"),
    *("count_values", "last_over_time", "Inf", "up", "job", "role"),
}


def promtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=300)


def rules() -> list[dict[str, Any]]:
    return [rule for file in RULES for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


@needs_promtool
def test_promtool_accepts_the_configuration_and_the_rules() -> None:
    config = promtool("check", "config", SHIPPED / "prometheus.yml")
    assert config.returncode == 0, config.stderr
    assert f"{len(RULES)} rule files found" in config.stdout
    checked = promtool("check", "rules", *RULES)
    assert checked.returncode == 0, checked.stderr


@needs_promtool
def test_every_alert_fires_when_it_should_and_only_then() -> None:
    tested = promtool("test", "rules", *TESTS)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert tested.stdout.count("SUCCESS") == len(TESTS)


@needs_promtool
def test_the_tests_notice_an_alert_that_never_fires(tmp_path: Path) -> None:
    for kind, files in (("rules", RULES), ("tests", TESTS)):
        (tmp_path / kind).mkdir()
        for file in files:
            (tmp_path / kind / file.name).write_text(
                file.read_text().replace("(chaos_steps_lost_total[5m]) > 0", "(chaos_steps_lost_total[5m]) < 0")
            )
    tested = promtool("test", "rules", *sorted((tmp_path / "tests").glob("*.yml")))
    assert tested.returncode != 0
    assert "ChaosStepsLost" in tested.stdout + tested.stderr


def test_every_alert_is_tested_firing_and_silent() -> None:
    firing: set[str] = set()
    silent: set[str] = set()
    for file in TESTS:
        for case in yaml.safe_load(file.read_text())["tests"]:
            for test in case.get("alert_rule_test", ()):
                (firing if test["exp_alerts"] else silent).add(test["alertname"])
    names = {alert["alert"] for alert in alerts()}
    assert firing == silent == names


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    text = (DOCS / "how-to/grafana.md").read_text()
    for alert in alerts():
        assert alert["labels"]["severity"] in ("warning", "critical"), alert["alert"]
        assert set(alert["annotations"]) == {"summary", "action"}, alert["alert"]
        assert f"`{alert['alert']}`" in text, f"no line on {alert['alert']} in docs/how-to/grafana.md"
        # The marks in the dashboards go by the names.
        assert re.fullmatch("(Training|Chaos).+", alert["alert"])


def test_the_rules_are_about_metrics_that_exist() -> None:
    known = {name for metric in table_of_metrics() for name in (metric, f"{metric}_sum", f"{metric}_count")}
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        bare = re.sub(r'\{[^}]*\}|"[^"]*"|\[[^]]*\]|\((experiment|cause|reason|started)[^)]*\)', " ", rule["expr"])
        words = set(re.findall(r"[a-zA-Z_:]{2,}", bare)) - _NOT_METRICS
        assert words <= known | recorded, words - known - recorded


def test_what_is_recorded_is_shown() -> None:
    shown = {name for query in all_queries() for name in metrics(query.expression)}
    assert {rule["record"] for rule in rules() if "record" in rule} - shown == {"run:started:info"}
