import struct
import xml.dom.minidom
import zlib

import pytest

from harness.judging.summarize import summarize
from harness.report import pictures
from harness.report.pictures import PictureError, cut_png, draw, write, write_png
from tests.harness import synthetic

pytestmark = pytest.mark.unit


def png(width, height, *, colour=2, interlaced=0):
    """Rows of one shade each, with the filter that looks at the row above."""
    rows = b"".join(b"\x02" + bytes([1] * 3 * width) for _ in range(height))
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, interlaced)),
        (b"IDAT", zlib.compress(rows)[:5]),
        (b"IDAT", zlib.compress(rows)[5:]),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )


def drawn(**knobs):
    events = synthetic.run(**knobs)
    return draw(summarize(events), events)


def test_every_picture_stands_for_itself():
    made = drawn()
    assert set(made) == {"speed-over-time", "loss", "ranks", "time", "recovery-0"}
    for picture in made.values():
        root = xml.dom.minidom.parseString(str(picture)).documentElement
        assert root.tagName == "svg" and root.getAttribute("width") and root.getAttribute("height")
        names = [child.tagName for child in root.childNodes]
        assert names[:4] == ["title", "desc", "style", "rect"], "what it shows, its colours, its ground"
        assert "prefers-color-scheme: dark" in picture
        assert "http" not in str(picture).replace("http://www.w3.org/2000/svg", "")


def test_the_colours_of_a_bar_are_told_in_the_picture():
    assert "state transfer 60 ms" in drawn()["time"]
    assert "process groups rebuilt" in drawn()["recovery-0"]


def test_a_run_without_steps_has_no_pictures_of_steps():
    events = synthetic.run(steps=1, faults=[], baseline=False)[:3]
    assert draw(summarize(events), events) == {}


def test_they_are_written_under_their_names(tmp_path):
    files = write(tmp_path / "new" / "folder", drawn())
    assert {file.name for file in files} >= {"loss.svg", "time.svg"}
    (tmp_path / "file").write_text("")
    with pytest.raises(PictureError, match="cannot write to"):
        write(tmp_path / "file" / "x", drawn())


def test_a_missing_browser_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "BROWSERS", ("no-such-browser",))
    (file,) = write(tmp_path, {"time": drawn()["time"]})
    with pytest.raises(PictureError, match="needs a browser, and none of no-such-browser was found"):
        write_png(file)


@pytest.mark.parametrize(
    ("script", "violation"),
    [("echo out of memory >&2; exit 7", r"did not draw time.svg \(exit code 7\): out of memory"),
     ('for word; do case $word in --screenshot=*) echo no > "${word#*=}";; esac; done', "is no PNG")],
)  # fmt: skip
def test_a_browser_that_does_not_draw_is_named(tmp_path, monkeypatch, script, violation):
    browser = tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\n{script}\n")
    browser.chmod(0o755)
    monkeypatch.setattr(pictures, "BROWSERS", (str(browser),))
    (file,) = write(tmp_path, {"time": drawn()["time"]})
    with pytest.raises(PictureError, match=violation):
        write_png(file)


@pytest.mark.parametrize("height", [1, 7, 20])
def test_a_png_is_cut_to_its_first_rows(height):
    cut = cut_png(png(5, 20), height)
    assert struct.unpack(">II", cut[16:24]) == (5, height)
    assert cut_png(cut, height) == cut
    at = cut.index(b"IDAT")
    (length,) = struct.unpack(">I", cut[at - 4 : at])
    assert zlib.decompress(cut[at + 4 : at + 4 + length]) == (b"\x02" + bytes([1] * 15)) * height


@pytest.mark.parametrize("data", [b"no", png(5, 3), png(5, 20, interlaced=1), png(5, 20, colour=5)])
def test_what_cannot_be_cut_is_refused(data):
    with pytest.raises(ValueError):
        cut_png(data, 10)
