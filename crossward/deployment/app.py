"""The ServerApp that Flower starts at the coordinator."""

from __future__ import annotations

from crossward.deployment.coordinator import conduct
from crossward.engines.flower.server import server_app

app = server_app(conduct)
