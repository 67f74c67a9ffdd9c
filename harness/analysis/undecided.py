"""Why a run cannot tell whether a job recovers from an incident: the codes.

`left_in_order`: asked to leave, all ranks ended well after `step`, when a checkpoint of `saved_step` was saved, and
nobody started them again. Of what was damaged (`what`: a checkpoint or a snapshot): `never_read`, no restart came after
it; `put_back`, it was whole again by then; `newer_saved`, one of `saved_step` was there by then, which is read in its
place.
"""

from __future__ import annotations

from typing import Literal

Code = Literal["left_in_order", "never_read", "put_back", "newer_saved"]
LEFT_IN_ORDER: Literal["left_in_order"] = "left_in_order"
