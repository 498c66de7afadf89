"""Small copies of what kernels of known boards write, in the formats their documentation gives; values are examples.

Source: kernel documentation (proc, cpufreq, thermal sysfs, power_supply, hwmon) and the Raspberry Pi documentation of
``get_throttled``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

Files = Mapping[str, str]


def write_tree(root: Path, files: Files) -> Path:
    """``files`` below ``root``."""
    for path, text in files.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    return root


def meminfo(total_kb: int, available_kb: int) -> Files:
    lines = (f"MemTotal:       {total_kb} kB", "MemFree:        1000 kB", f"MemAvailable:   {available_kb} kB")
    return {"/proc/meminfo": "\n".join([*lines, "SwapTotal:     102396 kB", ""])}


def cpuinfo(*parts: str, implementer: str = "0x41", tail: str = "") -> Files:
    blocks = [
        f"processor\t: {number}\nBogoMIPS\t: 108.00\nFeatures\t: fp asimd evtstrm crc32 cpuid\n"
        f"CPU implementer\t: {implementer}\nCPU architecture: 8\nCPU variant\t: 0x0\n"
        f"CPU part\t: {part}\nCPU revision\t: 3\n"
        for number, part in enumerate(parts)
    ]
    return {"/proc/cpuinfo": "\n".join(blocks) + tail}


def clocks(now_khz: list[int], top_khz: list[int]) -> Files:
    files: dict[str, str] = {}
    for number, (now, top) in enumerate(zip(now_khz, top_khz, strict=True)):
        folder = f"/sys/devices/system/cpu/cpu{number}/cpufreq"
        files |= {f"{folder}/scaling_cur_freq": f"{now}\n", f"{folder}/cpuinfo_max_freq": f"{top}\n"}
    return files


def zone(number: int, kind: str, value: str) -> Files:
    folder = f"/sys/class/thermal/thermal_zone{number}"
    return {f"{folder}/type": f"{kind}\n", f"{folder}/temp": f"{value}\n"}


def cooling(number: int, kind: str, state: int) -> Files:
    folder = f"/sys/class/thermal/cooling_device{number}"
    return {f"{folder}/type": f"{kind}\n", f"{folder}/cur_state": f"{state}\n", f"{folder}/max_state": "4\n"}


def supply(name: str, **fields: str) -> Files:
    return {f"/sys/class/power_supply/{name}/{field}": f"{value}\n" for field, value in fields.items()}


def pi(model: str, part: str, *, total_kb: int, now_khz: int, top_khz: int, heat: str, throttled: str) -> Files:
    return {
        **meminfo(total_kb, total_kb // 2),
        **cpuinfo(*[part] * 4, tail=f"\nRevision\t: c03114\nSerial\t\t: 0000\nModel\t\t: {model}\n"),
        **clocks([now_khz] * 4, [top_khz] * 4),
        **zone(0, "cpu-thermal", heat),
        "/proc/device-tree/model": f"{model}\0",
        "/proc/sys/kernel/ostype": "Linux\n",
        "/proc/sys/kernel/osrelease": "6.6.31+rpt-rpi-v8\n",
        "/proc/sys/kernel/arch": "aarch64\n",
        "/etc/os-release": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nNAME="Debian GNU/Linux"\nID=debian\n',
        "/sys/devices/platform/soc/soc:firmware/get_throttled": f"{throttled}\n",
    }


PI_ZERO_2W = pi(
    "Raspberry Pi Zero 2 W Rev 1.0",
    "0xd03",
    total_kb=437_000,
    now_khz=600_000,
    top_khz=1_000_000,
    heat="41856",
    throttled="0",
)
PI_3B_PLUS = pi(
    "Raspberry Pi 3 Model B Plus Rev 1.3",
    "0xd03",
    total_kb=943_000,
    now_khz=1_200_000,
    top_khz=1_400_000,
    heat="61224",
    throttled="80008",
)
PI_4 = pi(
    "Raspberry Pi 4 Model B Rev 1.4",
    "0xd08",
    total_kb=3_885_000,
    now_khz=1_000_000,
    top_khz=1_800_000,
    heat="81305",
    throttled="50005",
)
PI_5 = {
    **pi(
        "Raspberry Pi 5 Model B Rev 1.0",
        "0xd0b",
        total_kb=8_255_000,
        now_khz=2_400_000,
        top_khz=2_400_000,
        heat="52350",
        throttled="0",
    ),
    **cooling(0, "pwm-fan", 2),
    "/sys/class/hwmon/hwmon0/name": "cpu_thermal\n",
    "/sys/class/hwmon/hwmon0/temp1_input": "51800\n",
    "/sys/class/hwmon/hwmon2/name": "rpi_volt\n",
    "/sys/class/hwmon/hwmon2/in0_lcrit_alarm": "0\n",
}
PHONE = {
    **meminfo(7_600_000, 3_100_000),
    **cpuinfo(*["0xd05"] * 4, *["0xd0b"] * 2, *["0xd44"] * 2),
    **clocks([1_803_000] * 4 + [1_197_000] * 2 + [500_000] * 2, [1_803_000] * 4 + [2_253_000] * 2 + [2_802_000] * 2),
    **zone(0, "BIG", "43000"),
    **zone(2, "battery", "31200"),
    **zone(10, "cpu-1-0", "46000"),
    **zone(11, "modem", "-274000"),
    **zone(12, "soc_max", "0"),
    **cooling(0, "thermal-cpufreq-0", 3),
    **cooling(1, "battery", 1),
    **supply("battery", type="Battery", capacity="64", status="Discharging"),
    **supply("usb", type="USB", online="0"),
    "/system/build.prop": "# begin\nro.build.version.release=14\nro.build.version.sdk=34\n",
    "/proc/sys/kernel/osrelease": "5.10.157-android13-4\n",
}
