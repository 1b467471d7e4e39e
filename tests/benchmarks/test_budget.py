"""When a curve of losses comes down to another run's last loss, worked out by hand."""

import pytest
from commands import imported_tool

CURVE = [(100, 6.0), (200, 5.0), (300, 5.2), (400, 4.4)]


@pytest.mark.parametrize(
    ("loss", "steps"), [(6.5, 100), (6.0, 100), (5.5, 150), (5.0, 200), (4.8, 350), (4.4, 400), (4.3, None)]
)
def test_the_steps_to_a_loss_lie_on_lines_between_the_points(loss, steps):
    with imported_tool("budget", "benchmarks") as budget:
        assert budget.steps_to(loss, CURVE) == (None if steps is None else pytest.approx(steps))
