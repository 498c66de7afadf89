"""What an owner asks of a device's agent, over what the fleet book has of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.fleet.book import DeviceEntry, FleetSettings
from edge.contracts.errors import ConfigError

if TYPE_CHECKING:
    from coordinator.fleet.installation import Installation


@dataclass(frozen=True, kw_only=True)
class Requests:
    """What the owner gave for the devices of this command; None leaves what the book has, or the default."""

    data: str | None = None
    folder: str | None = None
    runtime: str | None = None
    budget_mb: float | None = None
    threads: int | None = None
    extra_flags: tuple[str, ...] | None = None

    def installation(self, device: str, settings: FleetSettings, entry: DeviceEntry | None) -> Installation:
        """The installation of ``device``: these requests over what the book has of it.

        Raises:
            ConfigError: it cannot be used, or no data is named.
        """
        from coordinator.fleet.installation import Installation

        given = {name: value for name, value in vars(self).items() if value is not None}
        kept = {} if entry is None or entry.revoked_at else dict(entry.installation)
        values: dict[str, Any] = {**kept, **given}
        if "folder" in kept and kept["folder"] != values["folder"]:
            raise ConfigError(
                [f"--folder: '{device}' is in {kept['folder']} there; in {values['folder']} it would run twice"],
                hint=f"apportion device revoke {device}, then add it with the other folder",
            )
        values |= {"device": device, "federation": settings.federation, "broker_url": settings.broker}
        if not values.get("data"):
            raise ConfigError(
                [f"--data: where on '{device}' are its examples? A folder there, or package.module:function"],
                hint="--data '~/images'; it need not be there yet",
            )
        values["extra_flags"] = tuple(values.get("extra_flags", ()))
        return Installation(**values)


def kept_arguments(installation: Installation) -> dict[str, Any]:
    """What the book keeps of an installation; the fleet's settings say the rest."""
    names = ("data", "folder", "runtime", "budget_mb", "threads", "extra_flags")
    return {name: msgspec.to_builtins(getattr(installation, name)) for name in names}


def installation_of(entry: DeviceEntry, settings: FleetSettings) -> Installation:
    """What the book says is installed."""
    return Requests().installation(entry.device, settings, msgspec.structs.replace(entry, revoked_at=0.0))
