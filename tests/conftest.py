"""What holds for all tests: properties are judged by their truth, not by how busy the machine is."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("rankcall", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rankcall")
