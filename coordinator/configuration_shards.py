"""What a run whose devices are divided among coordinators cannot have, told when its file is read."""

from __future__ import annotations

from coordinator.configuration import RunConfig

MOST_SHARDS = 64
"""A shard is a connection to the broker, one to the ledger and three threads of whoever holds it."""


def check_shards(config: RunConfig, problems: list[str]) -> None:
    """Add what does not go together with several ``[store] shards`` to ``problems``, each with its path."""
    if config.store.shards == 1:
        return
    where = f"with $.store.shards = {config.store.shards}"
    store, broker = config.store, config.broker
    if not store.ledger:
        problems.append(
            f'$.store.ledger: is missing, and {where} leases are rows of it; give "postgresql://user@host/database"'
        )
    if not store.dir or store.blobs:
        problems.append(
            f"$.store.{'blobs' if store.blobs else 'dir'}: {where} one process stores an update and another one reads "
            "it at once; give store.dir alone, a folder that all of them mount"
        )
    if store.quota_mb:
        problems.append(
            f"$.store.quota-mb: {store.quota_mb:g} is counted by one process, and {where} several write; leave it out "
            "and limit the folder itself"
        )
    if broker.url in ("embedded", "mosquitto"):
        problems.append(
            f"$.broker.url: '{broker.url}' ends with the process that began the run, and {where} all of them need it; "
            "give mqtt[s]://host of a broker that runs by itself"
        )
    for key in ("bulk", "web", "web_socket"):
        if value := getattr(broker, key):
            problems.append(f"$.broker.{key.replace('_', '-')}: '{value}' {_ONE_PROCESS[key]} {where}; leave it out")
    if config.cohort.local:
        problems.append(
            f"$.cohort.local: {config.cohort.local_devices} agents would end with whoever starts them; {where} "
            "start them by themselves: apportion agent"
        )
    if config.aggregation.mode != "synchronous":
        problems.append(
            f"$.aggregation.mode: '{config.aggregation.mode}' hands out work one device at a time, which is not done "
            f'{where}; use mode = "synchronous" or one shard'
        )
    if config.privacy.secure_aggregation:
        problems.append(
            "$.privacy.secure-aggregation: keys and shares go between all devices of a round, which one process has to "
            f"hear; it is not done {where}; leave it out or use one shard"
        )


_ONE_PROCESS = {
    "bulk": "is the address of one process and cannot be that of every shard's",
    "web": "is the page of one process, which would not hear every browser",
    "web_socket": "is for browsers, whose page is of one process",
}
