"""The sections of a report, a file each. A new one is a file here and a line in :data:`SECTIONS`."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.reporting.sections.asked import asked
from coordinator.reporting.sections.cost import cost
from coordinator.reporting.sections.curves import curves
from coordinator.reporting.sections.device_scores import device_scores
from coordinator.reporting.sections.devices import devices
from coordinator.reporting.sections.happened import happened
from coordinator.reporting.sections.memory import memory
from coordinator.reporting.sections.models import models
from coordinator.reporting.sections.privacy import privacy
from coordinator.reporting.sections.ranks import ranks
from coordinator.reporting.sections.repeat import repeat
from coordinator.reporting.sections.surroundings import surroundings
from coordinator.reporting.sections.time import time
from coordinator.reporting.sections.traffic import traffic
from coordinator.reporting.subject import Subject

SECTIONS: dict[str, Callable[[Subject], str]] = {
    "What was asked": asked,
    "What happened": happened,
    "Score and loss": curves,
    "Scores on the devices' own data": device_scores,
    "Effective rank": ranks,
    "Memory": memory,
    "Time": time,
    "Traffic": traffic,
    "Devices": devices,
    "Final models": models,
    "Cost": cost,
    "Privacy": privacy,
    "Environment": surroundings,
    "Repeat it": repeat,
}
"""Title -> what gives its HTML, empty where a run has nothing to say there; in the order of the page."""
