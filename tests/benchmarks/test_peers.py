"""What is counted beside peers: bytes by packets and ports, processes by their commands, lines that a user writes."""

from __future__ import annotations

import socket
import struct

import numpy as np
import pytest

from benchmarks.peers.lines import code_lines, settings_lines
from benchmarks.peers.processes import TICKS, Process, cpu_seconds, marked, with_roles
from benchmarks.peers.shares import accuracy
from benchmarks.peers.sides import Apportion, Flare, Flower, ended_rounds
from benchmarks.peers.wire import IPV4, IPV6, by_roles, connections, payload


def tcp(from_port: int, to_port: int, header_words: int) -> bytes:
    return struct.pack("!HHIIBBHHH", from_port, to_port, 0, 0, header_words << 4, 0, 0, 0, 0) + bytes(12)


def test_payload_of_ipv4_leaves_out_both_headers() -> None:
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + 32 + 1000, 0, 0, 64, socket.IPPROTO_TCP, 0, b"\x7f\0\0\1", bytes(4))
    assert payload(ip + tcp(40000, 8000, 8), IPV4) == ((40000, 8000), 1000)


def test_payload_of_ipv6_leaves_out_both_headers() -> None:
    ip = struct.pack("!IHBB16s16s", 0x60000000, 20 + 7, socket.IPPROTO_TCP, 64, bytes(16), bytes(16))
    assert payload(ip + tcp(1, 2, 5), IPV6) == ((1, 2), 7)


def test_payload_of_another_protocol_is_none() -> None:
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 60, 0, 0, 64, socket.IPPROTO_UDP, 0, bytes(4), bytes(4))
    assert payload(ip + bytes(40), IPV4) is None
    assert payload(b"", IPV4) is None


def test_connections_reads_ports_and_inodes_and_leaves_out_closed_sockets() -> None:
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 111 1 0 100\n"
        "   1: 0100007F:9C40 0100007F:1F40 01 00000000:00000000 00:00000000 00000000  0  0 222 1 0 20\n"
        "   2: 0100007F:9C41 0100007F:1F40 06 00000000:00000000 03:00000000 00000000  0  0 0 3 0\n"
    )
    assert connections(table) == {(8000, 0): 111, (40000, 8000): 222}


def test_by_roles_a_listening_socket_stands_for_its_connections() -> None:
    sums = {(40000, 8000): 10, (8000, 40000): 7, (8000, 40001): 5, (3, 4): 1}
    roles = {(8000, 0): "server", (40000, 8000): "client"}
    assert by_roles(sums, roles) == {("client", "server"): 10, ("server", "client"): 7, ("server", ""): 5, ("", ""): 1}


def test_cpu_seconds_has_those_of_ended_children() -> None:
    fields = ["S", "1"] + ["0"] * 9 + [str(TICKS), str(2 * TICKS), str(3 * TICKS), str(4 * TICKS), "20"]
    assert cpu_seconds("7 (a name) with) ) " + " ".join(fields)) == 10.0


def test_with_roles_takes_the_nearest_process_that_says() -> None:
    processes = {
        2: Process(2, 1, "flower-superlink", 0.0),
        3: Process(3, 2, "flwr-serverapp", 0.0),
        4: Process(4, 1, "flower-supernode site-4.npz", 0.0),
        5: Process(5, 4, "flwr-clientapp", 0.0),
        6: Process(6, 1, "flwr run", 0.0),
    }
    roles = with_roles(
        processes, lambda command: {"flower-superlink": "server"}.get(command, "client" if "super" in command else "")
    )
    assert roles == {2: "server", 3: "server", 4: "client", 5: "client", 6: ""}
    assert marked(processes, "site-4.npz") == [4, 5]


@pytest.mark.parametrize(
    ("side", "command", "role"),
    [
        (Apportion, "python /e/bin/apportion run run.toml", "server"),
        (Apportion, "python -m edge agent --broker mqtt://127.0.0.1:1", "client"),
        (Flower, "python /e/bin/flower-superlink --insecure", "server"),
        (Flower, "python /e/bin/flower-supernode --insecure", "client"),
        (Flower, "python /e/bin/flwr run app local", ""),
        (Flare, "python -u -m nvflare.private.fed.app.server.server_train -m /w/server", "server"),
        (Flare, "python -u -m nvflare.private.fed.app.client.worker_process -m /w/site-1", "client"),
    ],
)
def test_role_by_command(side: type, command: str, role: str) -> None:
    assert side.role(side, command) == role


def test_ended_rounds_the_last_that_began_is_not_over() -> None:
    text = "[ROUND 1/3]\n...\n[ROUND 2/3]\n"
    assert ended_rounds(text, r"\[ROUND (\d+)/", first=1, is_over=False) == 1
    assert ended_rounds(text, r"\[ROUND (\d+)/", first=1, is_over=True) == 2
    assert ended_rounds("", r"Round (\d+) started", first=0, is_over=False) == 0
    assert ended_rounds("Round 0 started", r"Round (\d+) started", first=0, is_over=False) == 0


def test_lines_without_comments_blanks_and_docstrings() -> None:
    text = (
        '"""What\n\nit is."""\n\nimport os  # why\n# a note\n\ndef f():\n    """A line."""\n    return """not\none"""\n'
    )
    assert code_lines(text) == 4
    assert settings_lines("# top\n[a]\n\nb = 1  # why\n") == 2


def test_accuracy_of_a_final_model_by_hand(tmp_path) -> None:
    from safetensors.numpy import save_file

    (tmp_path / "shares").mkdir()
    x = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], np.float32)
    np.savez(tmp_path / "shares" / "test.npz", x=x, y=np.array([0, 1, 0, 0]))
    zero, eye = np.zeros(2, np.float32), np.eye(2, dtype=np.float32)
    save_file({"2.bias": zero, "0.weight": eye, "0.bias": zero, "2.weight": eye}, tmp_path / "m.safetensors")
    # After ReLU the last two rows are zeros, and the first of equal scores is class 0.
    assert accuracy(tmp_path / "m.safetensors", tmp_path) == 1.0
