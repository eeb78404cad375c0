"""Examples of a strategy against a property, each counted as a fault that was injected."""

from hypothesis import HealthCheck, given, settings

import faults


def try_examples(strategy, holds, count):
    """Let a property hold for so many examples: the same ones every time in the suite, new ones in the slow tier."""

    def attempt(value):
        faults.count()
        holds(value)

    how = settings(max_examples=count, deadline=None, derandomize=count <= 200, suppress_health_check=list(HealthCheck))
    how(given(strategy)(attempt))()
