"""``python -m tests.chaos.self_check``: planted bugs and one seed twice; what was found, as JSON on the last line."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import msgspec

from tests.chaos.campaign import Campaign, Outcome
from tests.chaos.liars.kinds import KINDS, members_of
from tests.chaos.planted_bugs import BESIDE, PLANTED
from tests.chaos.schedule import undisturbed

TWICE = 21
"""A seed with faults of several kinds."""


def main() -> None:
    """Run them one after the other."""
    campaign = Campaign([])
    try:
        campaign.prepare()
        found: dict[str, Outcome] = {}
        for plant in PLANTED:
            planned = undisturbed("synchronous", campaign.broker)
            if plant in BESIDE:
                planned = replace(planned, liars=members_of(KINDS[BESIDE[plant]], 0))
            found[plant] = campaign.one(planned, plant, plant=plant)
        for again in ("first", "second"):
            found[again] = campaign.one(campaign.plan(TWICE), again)
    finally:
        shutil.rmtree(campaign.work, ignore_errors=True)
    print(json.dumps({name: msgspec.to_builtins(outcome) for name, outcome in found.items()}))


if __name__ == "__main__":
    main()
