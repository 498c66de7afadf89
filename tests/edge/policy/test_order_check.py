"""Each rule of a policy, held against orders: which is refused for good, which for today, and in which words."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edge.contracts.errors import PolicyRefused, PolicyWaits
from edge.contracts.evaluation import HeldOut
from edge.contracts.installation import Installation
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.masking import Masking
from edge.contracts.plan import BlobRef, WorkOrder
from edge.policy import day_account, refusal_log
from edge.policy.order_check import PolicyGuard
from edge.policy.policy_file import SitePolicy
from edge.policy.refusal_log import LINES, RefusalLog
from tests.contracts.samples import MANIFEST, ORDER

PLAIN = msgspec.structs.replace(
    ORDER,
    masking=None,
    report_labels=False,
    method="fedavg",
    precision="fp32",
    held_out=msgspec.UNSET,
    installs=msgspec.UNSET,
)
SCORED = HeldOut(share=0.2, seed=1, least=10, program="eval")
MASKED = Masking(step=1e-6, largest=1, max_weight=1, clip_norm=0.0)
NOON = time.struct_time((2026, 11, 23, 14, 3, 0, 0, 327, 0))


def nothing(digest: str) -> bool:
    return False


def guard_of(tmp_path: Path, rules: dict[str, Any], at: time.struct_time = NOON) -> PolicyGuard:
    return PolicyGuard(msgspec.convert(rules, SitePolicy), tmp_path, clock=lambda: at)


def numbered(number: int, **changes: Any) -> WorkOrder:
    return msgspec.structs.replace(PLAIN, assignment_id=f"{number:064x}", **changes)


def manifest_of(size: int) -> ArtifactManifest:
    files = (msgspec.structs.replace(MANIFEST.files[0], size=size),)
    return msgspec.structs.replace(MANIFEST, files=files)


@pytest.mark.parametrize(
    ("rules", "changes", "said"),
    [
        ({"methods": {"deny": ["fedavg"]}}, {}, "$.methods.deny: [\"fedavg\"], the order's method is 'fedavg'"),
        ({"methods": {"allow": ["fjord"]}}, {}, "$.methods.allow: [\"fjord\"], the order's method is 'fedavg'"),
        ({"methods": {"deny": ["fjord"]}}, {"method": ""}, "$.methods: the order does not say its method"),
        ({"federations": ["other"]}, {}, "$.federations: ['other'], the order is of 'digits'"),
        ({"orders": {"labels": False}}, {"report_labels": True}, "$.orders.labels: false, the order asks which"),
        ({"orders": {"scores": False}}, {"held_out": SCORED}, "$.orders.scores: false, the order asks for sums over"),
        (
            {"orders": {"releases": False}},
            {"installs": Installation(name="r2")},
            "$.orders.releases: false, the order installs 'r2'",
        ),
        ({"memory": {"max-mb": 100}}, {}, "$.memory.max-mb: 100, the order takes 114.4"),
        (
            {"privacy": {"require-secure-aggregation": True}},
            {},
            "$.privacy.require-secure-aggregation: true, the order's update is not masked",
        ),
        ({"privacy": {"require-clipping": True}}, {"masking": MASKED}, "$.privacy.require-clipping: true, the order's"),
        (
            {"bytes": {"download-per-round-mb": 1}},
            {"weights": BlobRef("w", 9_000_000, "zstd", 2_000_000)},
            "$.bytes.download-per-round-mb: 1, the order takes 2",
        ),
        (
            {"bytes": {"download-per-day-mb": 1}},
            {"weights": BlobRef("w", 9_000_000, "zstd", 2_000_000)},
            "$.bytes.download-per-day-mb: 1, the order alone takes 2",
        ),
    ],
)
def test_rule_forbids_an_order_for_good(
    tmp_path: Path, rules: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    guard = guard_of(tmp_path, rules)
    with pytest.raises(PolicyRefused) as caught:
        guard.check_order(msgspec.structs.replace(PLAIN, **changes), nothing)
    assert str(caught.value).startswith(said)
    assert caught.value.code == "policy"


def test_order_within_all_rules_is_taken(tmp_path: Path) -> None:
    rules = {
        "federations": ["digits"],
        "methods": {"allow": ["fedavg"], "deny": ["feddf"]},
        "bytes": {"download-per-round-mb": 1, "upload-per-round-mb": 1},
        "memory": {"max-mb": 120},
        "rounds": {"hours": ["14:00-15:00"], "per-day": 1},
        "privacy": {"require-secure-aggregation": True, "require-clipping": True},
    }
    order = msgspec.structs.replace(PLAIN, masking=msgspec.structs.replace(MASKED, clip_norm=1.0), upload=())
    guard = guard_of(tmp_path, rules)
    guard.check_order(order, nothing)
    guard.took(order, nothing)(manifest_of(1000))
    guard.check_order(order, nothing)  # the same order again is no second one of the day


def test_hours_are_the_devices_own_and_may_pass_midnight(tmp_path: Path) -> None:
    rules = {"rounds": {"hours": ["22:00-06:00", "12:00-13:00"]}}
    with pytest.raises(PolicyWaits) as caught:
        guard_of(tmp_path, rules).check_order(PLAIN, nothing)
    assert str(caught.value) == '$.rounds.hours: "22:00-06:00", "12:00-13:00", it is 14:03'
    assert caught.value.code == "policy-wait"
    for hour in (23, 5, 12):
        at = time.struct_time((*NOON[:3], hour, 59, 0, *NOON[6:]))
        guard_of(tmp_path, rules, at).check_order(PLAIN, nothing)


def test_processor_time_of_a_day_is_counted_over_restarts_and_anew_the_next_day(tmp_path: Path) -> None:
    rules = {"rounds": {"cpu-seconds-per-day": 60}}
    guard = guard_of(tmp_path, rules)
    guard.check_order(numbered(0), nothing)
    guard.took(numbered(0), nothing)
    guard.worked(59.0)
    guard_of(tmp_path, rules).check_order(numbered(1), nothing)
    guard_of(tmp_path, rules).worked(2.0)
    with pytest.raises(PolicyWaits, match=r"^\$.rounds.cpu-seconds-per-day: 60, 61 were used today"):
        guard_of(tmp_path, rules).check_order(numbered(1), nothing)
    guard_of(tmp_path, rules).check_order(numbered(0), nothing)  # taken already
    tomorrow = time.struct_time((2026, 11, 24, 0, 0, 0, 1, 328, 0))
    guard_of(tmp_path, rules, tomorrow).check_order(numbered(1), nothing)


def test_orders_of_a_day_are_counted_over_restarts_and_anew_the_next_day(tmp_path: Path) -> None:
    rules = {"rounds": {"per-day": 2}}
    for number in range(2):
        guard = guard_of(tmp_path, rules)
        guard.check_order(numbered(number), nothing)
        guard.took(numbered(number), nothing)
    with pytest.raises(PolicyWaits, match=r"^\$.rounds.per-day: 2, as many orders were taken today"):
        guard_of(tmp_path, rules).check_order(numbered(2), nothing)
    guard_of(tmp_path, rules).check_order(numbered(1), nothing)
    tomorrow = time.struct_time((2026, 11, 24, 0, 0, 0, 1, 328, 0))
    guard_of(tmp_path, rules, tomorrow).check_order(numbered(2), nothing)
    # a clock that is set back does not give the day again
    later = guard_of(tmp_path, rules, tomorrow)
    later.took(numbered(2), nothing)
    later.took(numbered(3), nothing)
    with pytest.raises(PolicyWaits):
        guard_of(tmp_path, rules).check_order(numbered(4), nothing)


def test_bytes_of_a_day_are_counted_before_they_are_moved_and_survive_a_restart(tmp_path: Path) -> None:
    rules = {"bytes": {"download-per-day-mb": 3, "upload-per-day-mb": 1}}
    order = numbered(
        0, weights=BlobRef("w", 2_000_000), artifact=BlobRef("a", 0), constants=None, tokenizer=None, upload=()
    )
    guard = guard_of(tmp_path, rules)
    guard.check_order(order, nothing)
    check = guard.took(order, nothing)
    again = guard_of(tmp_path, rules)
    with pytest.raises(PolicyWaits, match=r"download-per-day-mb: 3, 2 are used today and the order takes 2"):
        again.check_order(msgspec.structs.replace(order, assignment_id="1" * 64), nothing)
    again.check_order(msgspec.structs.replace(order, assignment_id="1" * 64), lambda digest: digest == "w")
    with pytest.raises(PolicyRefused, match=r"download-per-day-mb: 3, the order alone takes 3.5"):
        check(manifest_of(1_500_000))
    check(manifest_of(900_000))
    guard.uploads(order.assignment_id, 900_000)
    guard.uploads(order.assignment_id, 900_000)  # offered again
    day = json.loads((tmp_path / "policy-day.json").read_text())
    assert (day["down"], day["up"], day["date"]) == (2_900_000, 900_000, "2026-11-23")


def test_update_that_would_be_too_large_is_refused_before_it_is_trained(tmp_path: Path) -> None:
    name = next(spec.name for spec in MANIFEST.tensors if spec.byte_count())
    size = MANIFEST.tensor(name).byte_count()
    for precision, factor in (("fp32", 1), ("fp16", 2)):
        order = numbered(0, upload=(name,), precision=precision)
        limit = size / factor / 1e6
        guard_of(tmp_path, {"bytes": {"upload-per-round-mb": limit}}).took(order, nothing)(manifest_of(1))
        check = guard_of(tmp_path, {"bytes": {"upload-per-round-mb": limit * 0.9}}).took(order, nothing)
        with pytest.raises(PolicyRefused, match=r"^\$.bytes.upload-per-round-mb"):
            check(manifest_of(1))


def test_owner_can_read_what_was_asked_and_the_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = guard_of(tmp_path, {"methods": {"deny": ["feddf"]}})
    guard.took(numbered(1), nothing)
    with pytest.raises(PolicyRefused):
        guard.check_order(numbered(2, method="feddf"), nothing)
    lines = [json.loads(line) for line in (tmp_path / "policy-log.jsonl").read_text().splitlines()]
    assert [(line["answer"], line["method"], line["round"]) for line in lines] == [
        ("taken", "fedavg", 3),
        ("policy", "feddf", 3),
    ]
    assert lines[1]["reason"].startswith("$.methods.deny")
    monkeypatch.setattr(refusal_log, "MOST_BYTES", 1000)
    for number in range(50):
        guard.took(numbered(number), nothing)
    sizes = [path.stat().st_size for path in tmp_path.glob("policy-log*")]
    assert len(sizes) == 2
    assert max(sizes) < 1500


def test_what_tells_nothing_of_the_data_is_not_held_to_privacy(tmp_path: Path) -> None:
    guard = guard_of(tmp_path, {"privacy": {"require-secure-aggregation": True}, "orders": {"scores": False}})
    guard.check_order(numbered(1, installs=Installation(name="r2")), nothing)
    held_out = msgspec.structs.replace(SCORED, program="")
    guard_of(tmp_path, {"orders": {"scores": False}}).check_order(numbered(2, held_out=held_out), nothing)


def test_flood_of_orders_writes_few_lines_and_the_first_ones_stay(tmp_path: Path) -> None:
    now = [0.0]
    log = RefusalLog(tmp_path / "log.jsonl", now=lambda: now[0])
    for number in range(2 * LINES):
        for _ in range(3):
            log.add(numbered(number), "policy", "why")
    now[0] = 60.0
    log.add(numbered(5000), "taken")
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["assignment_id"] for line in lines] == [f"{n:064x}" for n in [*range(LINES), 5000]]
    assert [line.get("left_out") for line in lines] == [None] * LINES + [3 * LINES]


def test_days_limit_counts_the_orders_that_are_not_kept_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(day_account, "NAMED", 3)
    guard = guard_of(tmp_path, {"rounds": {"per-day": 8}})
    for number in range(8):
        guard.check_order(numbered(number), nothing)
        guard.took(numbered(number), nothing)
    guard.check_order(numbered(7), nothing)  # one of today's
    with pytest.raises(PolicyWaits, match=r"\$\.rounds\.per-day: 8"):
        guard.check_order(numbered(8), nothing)
