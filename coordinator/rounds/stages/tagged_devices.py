"""Which devices take part by the tags that they carry: ``[cohort] tags`` and ``[clusters] tags``."""

from __future__ import annotations

from coordinator.config.run_config import RunConfig
from coordinator.rounds.federation import Federation, RoundStage


class TaggedDevices(RoundStage):
    """In a run that names tags. A tag is what a device's owner says; nobody vouches for it."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    @classmethod
    def is_used(cls, config: RunConfig) -> bool:
        """Whether the run asks for it."""
        return bool(config.cohort.tags or config.clusters.tags)

    def eligible(self, federation: Federation, devices: list[str], round_index: int) -> list[str]:
        """Those of ``devices`` with a tag of the cohort's, and a cluster where there are any."""
        config = federation.config
        tags = {hello.device: hello.tagged for hello in federation.devices.present()}
        able = []
        for device in devices:
            mine = tags.get(device, ())
            missing = "" if not config.cohort.tags or set(mine) & set(config.cohort.tags) else "$.cohort.tags"
            if not missing and config.clusters.tags and not config.clusters.cluster(mine):
                missing = "$.clusters.tags"
            if not missing:
                able.append(device)
            elif device not in self._told:
                self._told.add(device)
                has = ", ".join(mine) or "none"
                federation.progress.say(f"{device} does not take part: its tags are {has}, and {missing} names others")
        return able
