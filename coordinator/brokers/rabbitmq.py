"""The configuration of one node of a RabbitMQ 4 cluster: MQTT over TLS, certificates only, and no other door."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from coordinator.brokers.mosquitto import PACKET_LIMIT_BYTES
from coordinator.brokers.nodes import Node

FOLDER = PurePosixPath("/etc/rabbitmq")
"""Where RabbitMQ's packages read their configuration."""

CONFIG, ADVANCED, ENVIRONMENT, PLUGINS = "rabbitmq.conf", "advanced.config", "rabbitmq-env.conf", "enabled_plugins"
BETWEEN, DEFINITIONS, COOKIE, REVOKED, APPLY, LISTS = (
    "between.config",
    "definitions.json",
    "erlang.cookie",
    "revoked",
    "apply",
    "crl",
)
TICK_S = 15
"""A node that vanishes without a word is given up after 0.75 to 1.25 of this."""


def node_config(
    node: Node, nodes: Sequence[Node], at: PurePosixPath, *, bind: str, cluster_bind: str, devices: int
) -> str:
    """``rabbitmq.conf`` of ``node``.

    Args:
        at: where the node finds its folder.
        bind, cluster_bind: address to listen at for clients and for other nodes; empty for all.
        devices: how many connect at most, to the whole cluster; any node may have to take them all.
    """
    address = f"{bind}:{node.port}" if bind and ":" not in bind else f"[{bind}]:{node.port}" if bind else f"{node.port}"
    lines = [
        "# Written from the identity's record: changes here are lost.",
        "# MQTT over TLS is the only door. What certificates let in is in advanced.config beside this file.",
        "listeners.tcp = none",
        "mqtt.listeners.tcp = none",
        f"mqtt.listeners.ssl.1 = {address}",
        "mqtt.allow_anonymous = false",
        "anonymous_login_user = none",
        "mqtt.ssl_cert_login = true",
        "ssl_cert_login_from = common_name",
        "# Nobody ends another's connection by its client id.",
        "mqtt.ssl_cert_client_id_from = distinguished_name",
        "mqtt.max_packet_size_unauthenticated = 4096",
        f"mqtt.max_packet_size_authenticated = {PACKET_LIMIT_BYTES}",
        "mqtt.prefetch = 10",
        "mqtt.retained_message_store = rabbit_mqtt_retained_msg_store_noop",
        "mqtt.tcp_listen_options.backlog = 4096",
        "mqtt.tcp_listen_options.nodelay = true",
        "ssl_handshake_timeout = 10000",
        f"connection_max = {devices + devices // 10 + 100}",
        "# Sessions that outlive their connection survive a node; clean ones, which agents have, live on one.",
        "mqtt.durable_queue_type = quorum",
        "",
        "cluster_formation.peer_discovery_backend = classic_config",
        *(f"cluster_formation.classic_config.nodes.{i} = {each}" for i, each in enumerate(nodes, 1)),
        f"cluster_formation.target_cluster_size_hint = {len(nodes)}",
        "# The smaller side of a network that was cut stops, and its clients go to the other one.",
        "cluster_partition_handling = pause_minority",
        f"net_ticktime = {TICK_S}",
        f"distribution.listener.port_range.min = {node.distribution_port}",
        f"distribution.listener.port_range.max = {node.distribution_port}",
        *([f"distribution.listener.interface = {cluster_bind}"] if cluster_bind else []),
        "",
        "definitions.import_backend = local_filesystem",
        f"definitions.local.path = {at / DEFINITIONS}",
        "definitions.skip_if_unchanged = true",
        "",
        "vm_memory_high_watermark.relative = 0.5",
        "disk_free_limit.absolute = 1GB",
        "log.connection.level = warning",
    ]
    return "\n".join(lines) + "\n"


def advanced_config(at: PurePosixPath) -> str:
    """``advanced.config``: whose certificates are taken. The lists in ``crl`` are read at every handshake."""
    return f"""%% Written from the identity's record: changes here are lost.
[{{rabbit, [{{ssl_options, [
    {{cacertfile, "{at / "ca.pem"}"}},
    {{certfile, "{at / "server.pem"}"}},
    {{keyfile, "{at / "server.key"}"}},
    {{verify, verify_peer}},
    {{fail_if_no_peer_cert, true}},
    {{depth, 1}},
    {{versions, ['tlsv1.3', 'tlsv1.2']}},
    %% A session that is taken up again is not asked for its certificate.
    {{reuse_sessions, false}},
    {{crl_check, peer}},
    {{crl_cache, {{ssl_crl_hash_dir, {{internal, [{{dir, "{at / LISTS}"}}]}}}}}}
]}}]}}].
"""


def environment(node: Node, at: PurePosixPath) -> str:
    """``rabbitmq-env.conf``: the node's name."""
    return "\n".join(
        [
            "# Written from the identity's record: changes here are lost.",
            f"NODENAME={node}",
            f"USE_LONGNAME={'true' if '.' in node.host else 'false'}",
            f"CONFIG_FILE={at / CONFIG}",
            f"ADVANCED_CONFIG_FILE={at / ADVANCED}",
            f"ENABLED_PLUGINS_FILE={at / PLUGINS}",
            "# Nodes and rabbitmqctl talk to nodes over TLS; where Erlang's own TLS is, Erlang's place says.",
            'tls=$(dirname "$(readlink -f "$(command -v erl)")")/../lib',
            'tls=$(echo "$tls"/ssl-*/ebin)',
            f'between="-pa $tls -proto_dist inet_tls -ssl_dist_optfile {at / BETWEEN}"',
            'SERVER_ADDITIONAL_ERL_ARGS="$between"',
            'CTL_ERL_ARGS="$between"',
            "",
        ]
    )


def between_nodes(at: PurePosixPath) -> str:
    """How nodes talk to each other: TLS, the one that calls checks name and certificate, the called one the cookie.

    Servers' certificates are for servers alone, so a caller has none to show.
    """
    return f"""%% Written from the identity's record: changes here are lost.
[{{server, [{{certfile, "{at / "server.pem"}"}}, {{keyfile, "{at / "server.key"}"}}, {{verify, verify_none}}]}},
 {{client, [{{cacertfile, "{at / "ca.pem"}"}}, {{verify, verify_peer}}]}}].
"""


def enabled_plugins() -> str:
    """The plugins: MQTT, and nothing that listens besides."""
    return "[rabbitmq_mqtt].\n"


def apply_script() -> str:
    """A script that has a running cluster take over users and topics, and ends the connections of who is revoked."""
    return f"""#!/bin/sh
# Run at one node, after the folders of all were renewed: users and topics are the whole cluster's.
# A user that is deleted loses its connections at once, at whatever node they are.
set -eu
here=$(dirname "$0")
rabbitmqctl --quiet import_definitions "$here/{DEFINITIONS}"
rabbitmqctl --silent --no-table-headers list_users | cut -f 1 | grep -Fx -f "$here/{REVOKED}" |
  while read -r user; do rabbitmqctl --quiet delete_user -- "$user"; done
"""
