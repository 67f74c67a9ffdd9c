"""The stack of docker/compose.yaml, as far as it can be checked without images."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards import DASHBOARDS

pytestmark = pytest.mark.unit

DOCKER = Path(__file__).resolve().parents[2] / "docker"
COMPOSE = DOCKER / "compose.yaml"


def stack() -> dict[str, Any]:
    return dict(yaml.safe_load(COMPOSE.read_text()))


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="no docker-compose on this machine")
def test_docker_compose_accepts_it() -> None:
    checked = subprocess.run(
        ["docker-compose", "-f", str(COMPOSE), "config"], capture_output=True, text=True, timeout=300
    )
    assert checked.returncode == 0, checked.stderr
    assert set(yaml.safe_load(checked.stdout)["services"]) == {"training", "prometheus", "grafana"}


def test_it_keeps_to_what_old_and_new_compose_understand() -> None:
    # docker-compose 1.29 refuses the first, compose 2 warns of the second.
    assert not {"name", "version"} & stack().keys()


def test_nothing_is_published_beyond_the_loopback() -> None:
    for service in stack()["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_images_that_are_not_ours_are_pinned() -> None:
    images = {name: service["image"] for name, service in stack()["services"].items()}
    assert images.pop("training") == "${CHAOS_IMAGE:-mecefo-chaos:latest}"
    assert all(re.fullmatch(r"[\w/-]+:v?\d+\.\d+\.\d+", image) for image in images.values())


def test_every_part_starts_alone_and_without_privileges() -> None:
    for service in stack()["services"].values():
        assert not {"depends_on", "links", "network_mode", "volumes_from", "privileged", "cap_add"} & service.keys()
        assert service["cap_drop"] == ["ALL"]


def test_what_is_mounted_is_there() -> None:
    mounts = [mount for service in stack()["services"].values() for mount in service["volumes"]]
    sources = [mount.split(":")[0] for mount in mounts]
    assert {source for source in sources if not source.startswith("./")} <= stack()["volumes"].keys()
    assert all((DOCKER / source).exists() for source in sources if source.startswith("./"))


def test_grafana_finds_its_dashboards_and_its_prometheus() -> None:
    grafana = stack()["services"]["grafana"]
    mounts = {mount.split(":")[1]: DOCKER / mount.split(":")[0] for mount in grafana["volumes"]}
    (provider,) = yaml.safe_load((DOCKER / "grafana/provisioning/dashboards/chaos.yaml").read_text())["providers"]
    folder = mounts[provider["options"]["path"]]
    assert {file.stem for file in folder.iterdir()} == DASHBOARDS.keys()
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (mounts[str(home.parent)] / home.name).is_file()
    (source,) = yaml.safe_load((DOCKER / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert source["url"].strip("${}") in grafana["environment"]
    (scrape,) = yaml.safe_load((DOCKER / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    # $__rate_interval follows from it: with a smaller one, windows hold too few scrapes for a rate.
    assert source["jsonData"]["timeInterval"] == scrape["scrape_interval"]


def test_prometheus_reads_the_targets_that_the_job_writes() -> None:
    services = stack()["services"]
    (volume,) = (mount.split(":") for mount in services["training"]["volumes"])
    (seen,) = (mount.split(":") for mount in services["prometheus"]["volumes"] if mount.startswith(f"{volume[0]}:"))
    command = services["training"]["command"][-1]
    assert command.count(f"--out {volume[1]} ") == 2
    assert (seen[1], seen[2]) == ("/etc/prometheus/targets", "ro")
    assert command.count("0.0.0.0:9400") == 2 and services["training"]["hostname"] == "training"
