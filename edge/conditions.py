"""Whether a device may train now. Memory and storage today; heat and battery join here."""

from __future__ import annotations

from profiles.device import DeviceProfile

STORAGE_FLOOR_BYTES = 32 << 20


def waiting_reason(profile: DeviceProfile, *, needed_bytes: int) -> str:
    """Why training has to wait on this device, or an empty string.

    Args:
        profile: probed just now.
        needed_bytes: what supervisor and trainer will reach; 0 when unknown.
    """
    if needed_bytes and profile.free_ram_bytes < needed_bytes:
        return f"{profile.free_ram_bytes >> 20} MB of memory are free, the order needs {needed_bytes >> 20} MB"
    if profile.storage_free_bytes < STORAGE_FLOOR_BYTES:
        return f"{profile.storage_free_bytes >> 20} MB of storage are free, {STORAGE_FLOOR_BYTES >> 20} MB are needed"
    return ""
