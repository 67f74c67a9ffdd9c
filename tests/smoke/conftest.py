"""Shows the values in failed assertions of the module that these tests share."""

import pytest

pytest.register_assert_rewrite("tests.integration.runs")
