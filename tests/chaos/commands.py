"""What the processes of a run are started with: command lines, ports, keys, and what the harness asks of them."""

from __future__ import annotations

from coordinator.brokers.process import BrokerAddress
from tests.chaos.faults import DURABLE_WRITE
from tests.chaos.liars.kinds import devices_among
from tests.chaos.schedule import Schedule
from tests.chaos.site import DEADLINE_S, NAME, Site, config_text, device_names

PLANTED_DEADLINE_S = 8

SECOND = "coordinator-b"
"""The coordinator that joins."""

Values = dict[str, object]


class Commands:
    """The processes of ``schedule`` at ``site``, whose broker is at ``broker``.

    Args:
        plant: name of a bug that coordinators get; empty for none.
        store: what stands in ``[store]``.
    """

    def __init__(self, schedule: Schedule, site: Site, broker: BrokerAddress, *, plant: str, store: str) -> None:
        self._schedule, self._site, self._plant, self._store = schedule, site, plant, store
        self._user, self._broker_port = broker.user, int(broker.url.rpartition(":")[2])

    def coordinator(self, party: str, port: int, *, is_new: bool) -> Values:
        """``run``, ``resume`` or ``join``."""
        site, signing = self._site, str(self._site.signing) if self._schedule.is_signed else ""
        values: Values = {"blobs": str(site.blobs), "aside": str(site.aside), "plant": self._plant, "signing": signing}
        values["tells_writes"] = any(fault.at.name.endswith(DURABLE_WRITE) for fault in self._schedule.faults)
        values["modules"] = "" if self._schedule.faults else str(site.work / "modules.json")
        if party == SECOND:
            return {
                "arguments": ["join", str(site.ledger), "--federation", NAME, "--run-dir", str(site.second_dir)],
                **values,
            }
        arguments = ["run", self._run_file(port), "--run-dir"] if is_new else ["resume"]
        return {"arguments": [*arguments, str(site.run_dir), "--local-devices", "0"], **values}

    def _run_file(self, port: int) -> str:
        # A run with a planted bug may have to wait for its deadline, and nothing else slows it down.
        text = config_text(
            self._site.work,
            self._schedule.mode,
            port=port,
            user=self._user,
            deadline_s=PLANTED_DEADLINE_S if self._plant else DEADLINE_S,
            liars=len(devices_among(self._schedule.liars)),
            store=self._store,
        )
        path = self._site.folder / "chaos.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    def device(self, device: str, port: int) -> Values:
        """``agent``."""
        store = self._site.disks[device].folder / "store"
        arguments = ["--broker", f"mqtt://{self._user}@127.0.0.1:{port}", "--federation", NAME, "--device", device]
        arguments += ["--data", str(self._site.data(device)), "--store", str(store), "--connect-timeout-s", "20"]
        return {"arguments": [*arguments, *(["--trust", str(self._site.trust)] if self._schedule.is_signed else [])]}

    def liar(self, name: str) -> Values:
        """A liar has a way to the broker of its own, and no disk."""
        liar = next(liar for liar in self._schedule.liars if liar.name == name)
        values: Values = {"kind_of_liar": liar.kind, "variant": liar.variant, "federation": NAME, "device": name}
        values["url"] = f"mqtt://{self._user}@127.0.0.1:{self._broker_port}"
        values["is_compared"] = self._schedule.mode == "synchronous"
        return {**values, "victims": device_names()}
