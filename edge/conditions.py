"""Whether a device may train now. Memory and storage today; heat and battery join here."""

from __future__ import annotations

from profiles.device import DeviceProfile

STORAGE_FLOOR_BYTES = 32 << 20


def waiting_reason(profile: DeviceProfile, *, needed_bytes: int, held_bytes: int = 0) -> str:
    """Why training has to wait on this device, or an empty string.

    Args:
        profile: probed just now.
        needed_bytes: what supervisor and trainer will reach; 0 when unknown.
        held_bytes: what they hold already.
    """
    more = needed_bytes - held_bytes
    if needed_bytes and profile.free_ram_bytes < more:
        return f"{profile.free_ram_bytes / 1e6:.0f} MB of memory are free, the order needs {more / 1e6:.0f} MB more"
    if profile.storage_free_bytes < STORAGE_FLOOR_BYTES:
        return (
            f"{profile.storage_free_bytes / 1e6:.0f} MB of storage are free, {STORAGE_FLOOR_BYTES / 1e6:.0f} are needed"
        )
    return ""
