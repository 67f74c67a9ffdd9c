"""Why it is not known whether a job recovers from an incident: the codes.

`left_in_order`: asked to leave, all ranks ended well after `step`, when a checkpoint of `saved_step` was saved, and
they were not started again. The others are about a damaged checkpoint or snapshot (`what`): `never_read`, no restart
came after the damage; `put_back`, it was whole again by then; `newer_saved`, one of `saved_step` was there by then, and
was read instead.
"""

from __future__ import annotations

from typing import Literal

Code = Literal["left_in_order", "never_read", "put_back", "newer_saved"]
LEFT_IN_ORDER: Literal["left_in_order"] = "left_in_order"
