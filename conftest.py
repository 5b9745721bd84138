"""How pytest runs here, wherever the tests are."""

from hypothesis import HealthCheck, settings

# A machine that stands still for a second is no fault of an example.
settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
