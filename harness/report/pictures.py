"""The pictures of a report as files of their own: SVG, which follows the reader's light or dark, and PNG.

PNG is drawn by a Chromium where there is one: only a browser knows style sheets well enough.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from markupsafe import Markup

from harness.judging.summary import Summary
from harness.report import bars, charts, history, speed
from harness.report.curves import trace
from harness.report.drawing import WIDE
from harness.report.html import time_parts
from harness.report.wording import comparable_baseline
from mecefo_runtime.system.events import Event

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
"""Programs that can draw a PNG, in the order in which they are looked for."""
_MAX_RECOVERIES = 10
# Much longer than it takes on a busy machine.
_TIMEOUT_SECONDS = 300.0
_SCALE = 2
_PADDING = 10
_SPARE_HEIGHT = 300
"""Chromium 156 leaves windows of little more than 100 pixels blank: the window is higher, and the rest is cut off."""
_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_HERE = Path(__file__).parent


class PictureError(Exception):
    """A picture could not be written; its text says why."""


def draw(summary: Summary, events: Iterable[Event]) -> dict[str, Markup]:
    """Every picture of the run that there is something to draw for, by name, as SVG that needs no other file."""
    curves, past = trace(events), history.read(events)
    drawn = {
        "speed-over-time": speed.speed_over_time(curves, past, WIDE, comparable_baseline(summary)),
        "loss": charts.loss_by_step(curves, past, WIDE),
        "ranks": bars.ranks_over_time(curves, past, WIDE),
        "time": bars.stacked_bar("time", time_parts(summary), "How the wall clock was spent", WIDE, with_legend=True),
    }
    seen = [one.incident for one in summary.incidents if one.verified]
    for number in seen[:_MAX_RECOVERIES]:
        if number in past.ways:
            drawn[f"recovery-{number}"] = bars.recovery(f"recovery-{number}", past.ways[number], WIDE, with_legend=True)
    return {name: _standalone(picture) for name, picture in drawn.items() if picture}


def write(folder: Path, pictures: Mapping[str, Markup]) -> list[Path]:
    """Write each picture as NAME.svg into `folder`, which is made if need be.

    Raises:
        PictureError: it cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for name, picture in pictures.items():
            path = folder / f"{name}.svg"
            path.write_text(f"{picture}\n", encoding="utf-8")
            written.append(path)
    except OSError as error:
        raise PictureError(f"cannot write to {folder}: {error.strerror}") from error
    return written


def write_png(svg: Path) -> Path:
    """Draw a file of `write` as a PNG beside it, at twice its size.

    Raises:
        PictureError: there is no browser, or it did not draw.
    """
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise PictureError(f"PNG needs a browser, and none of {', '.join(BROWSERS)} was found")
    width, height = _size(svg.read_text(encoding="utf-8"))
    png = svg.with_suffix(".png")
    png.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        command = [
            browser,
            "--headless",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            f"--force-device-scale-factor={_SCALE}",
            f"--window-size={width},{height + _SPARE_HEIGHT}",
            f"--screenshot={png.absolute()}",
            svg.absolute().as_uri(),
        ]
        if os.geteuid() == 0:
            # Chromium refuses root its sandbox; what it opens here is our own.
            command.insert(1, "--no-sandbox")
        try:
            done = subprocess.run(
                command, capture_output=True, encoding="utf-8", errors="replace", timeout=_TIMEOUT_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise PictureError(f"{browser} did not draw {svg.name}: {error}") from error
    if not png.exists():
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise PictureError(f"{browser} did not draw {svg.name} (exit code {done.returncode}): {last}")
    try:
        png.write_bytes(cut_png(png.read_bytes(), height * _SCALE))
    except (struct.error, zlib.error, ValueError) as error:
        raise PictureError(f"{browser} drew {svg.name} as something that is no PNG: {error}") from error
    return png


def cut_png(data: bytes, height: int) -> bytes:
    """The first `height` rows of a PNG that is not interlaced.

    Raises:
        ValueError: it is none, or has fewer rows (or struct.error, zlib.error: it is damaged).
    """
    if not data.startswith(_PNG_MAGIC):
        raise ValueError("it does not begin like one")
    chunks, pixels, at = [], b"", len(_PNG_MAGIC)
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        at += length + 12
        if kind == b"IDAT":
            pixels += content
        else:
            chunks.append((kind, content))
    width, rows, depth, colour, *rest = struct.unpack(">IIBBBBB", chunks[0][1])
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(colour)
    if channels is None or rest[2] or rows < height:
        raise ValueError(f"{rows} rows of colour type {colour}")
    # A row's filter looks at the row above at most, so the first rows stand for themselves.
    row_bytes = 1 + (width * depth * channels + 7) // 8
    kept = zlib.compress(zlib.decompress(pixels)[: height * row_bytes], 9)
    chunks[0] = (b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, *rest))
    chunks.insert(len(chunks) - 1, (b"IDAT", kept))
    return _PNG_MAGIC + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )


def _standalone(picture: Markup) -> Markup:
    """A picture of the page with its style sheets, a ground and a size of its own."""
    style = "".join((_HERE / name).read_text(encoding="utf-8") for name in ("palette.css", "figures.css"))
    head, body = str(picture).split(">", 1)
    left, top, width, height = map(float, head.split('viewBox="')[1].split('"')[0].split())
    whole = (left - _PADDING, top - _PADDING, width + 2 * _PADDING, height + 2 * _PADDING)
    box = " ".join(f"{number:.0f}" for number in whole)
    size = f'width="{whole[2]:.0f}" height="{whole[3]:.0f}"'
    head = head.replace(f'viewBox="0 0 {width:.0f} {height:.0f}"', f'viewBox="{box}" {size}')
    ground = f'<rect x="{whole[0]:.0f}" y="{whole[1]:.0f}" {size} style="fill: var(--page)"/>'
    words, rest = body.split("</desc>", 1)
    return Markup(f"{head}>{words}</desc><style>{style}</style>{ground}{rest}")


def _size(svg: str) -> tuple[int, int]:
    width, height = (svg.split(f' {side}="', 1)[1].split('"', 1)[0] for side in ("width", "height"))
    return int(width), int(height)
