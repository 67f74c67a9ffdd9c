"""The colours of causes: apart for readers with and without colour blindness, on light and on dark pages."""

import itertools
import re
from importlib.resources import files

import numpy as np
import pytest

pytestmark = pytest.mark.unit

# Machado, Oliveira and Fernandes 2009, "A Physiologically-based Model for Simulation of Color Vision Deficiency".
VISION = {
    "normal": np.eye(3),
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
}
LEAST_DIFFERENCE = 10.0
"""In CIE L*a*b*, in which 2.3 is just noticeable side by side."""


def lab(colour, vision):
    """CIE L*a*b* (D65) of a colour `rrggbb`, as it is seen."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(vision) @ linear, 0.0, 1.0)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ seen / [0.9505, 1.0, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("is_dark", [False, True])
def test_no_two_causes_look_alike(vision, is_dark):
    light, _, dark = (files("harness.report") / "palette.css").read_text().partition("@media")
    style = dark if is_dark else light
    colours = dict(re.findall(r"--(c-[a-z]+|page): #([0-9a-f]{6});", style))
    assert len(colours) > 10
    seen = {name: lab(colour, VISION[vision]) for name, colour in colours.items()}
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > LEAST_DIFFERENCE, (one, other)
