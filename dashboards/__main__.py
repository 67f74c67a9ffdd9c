"""`python -m dashboards [FOLDER]`: write the dashboards as JSON."""

from __future__ import annotations

from pathlib import Path

import click

from dashboards import FOLDER, write


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=FOLDER)
def main(folder: Path) -> None:
    """Write the dashboards as JSON to FOLDER (docker/grafana/dashboards)."""
    for file in write(folder):
        click.echo(file)


if __name__ == "__main__":
    main()
