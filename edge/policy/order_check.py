"""Holds orders against the owner's policy: when they come, when their manifest is here, and when masks are agreed on.

Rules that forbid an order for good are asked before those of the hour and the day, so that nobody asks again tomorrow
for what will not be done then either.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from edge.contracts.errors import PlanError, PolicyRefused, PolicyWaits, StoreFull
from edge.contracts.packing import KEPT
from edge.contracts.plan import BlobRef, WorkOrder
from edge.policy.day_account import DayAccount
from edge.policy.policy_file import MB, SitePolicy
from edge.policy.refusal_log import RefusalLog

if TYPE_CHECKING:
    from edge.contracts.manifest import ArtifactManifest

log = logging.getLogger("apportion.policy")

Held = Callable[[str], bool]
"""Whether a blob is in the store already."""

MEMORY_MB = 2**20
_BYTES_OF = {"fp32": 4, "fp16": 2, "int8": 1}


class PolicyGuard:
    """One device's policy at work; its day's account and its log are files in ``folder``.

    Args:
        clock: the time of day where the device is.
    """

    def __init__(
        self, policy: SitePolicy, folder: Path, *, clock: Callable[[], time.struct_time] = time.localtime
    ) -> None:
        self.policy = policy
        self._account = DayAccount(folder / "policy-day.json")
        self._log = RefusalLog(folder / "policy-log.jsonl")
        self._clock = clock

    def check_order(self, order: WorkOrder, held: Held) -> None:
        """Check that ``order`` may be taken, as far as it says itself.

        Raises:
            PolicyRefused: a rule forbids it, which is named with its value; PolicyWaits: another time.
        """
        try:
            self._check_kind(order)
            self._check_privacy(order)
            self._check_bytes(order, _size_of(order, held), 0)
            self._check_time(order)
        except PolicyRefused as error:
            self._log.add(order, error.code, str(error))
            raise

    def took(self, order: WorkOrder, held: Held) -> Callable[[ArtifactManifest], None]:
        """Count ``order`` as one of today's; what its manifest is to be checked by before its files are asked for.

        Raises:
            StoreFull: it cannot be counted, so nothing of it is to be asked for; the check likewise.
        """
        self._log.add(order, "taken")
        size = _size_of(order, held)
        self._take(order, size)

        def check(manifest: ArtifactManifest) -> None:
            files = sum(file.size for file in manifest.files if not held(file.sha256))
            try:
                self._check_bytes(order, size + files, _update_bytes(order, manifest), counted=size)
            except PolicyRefused as error:
                self._log.add(order, error.code, str(error))
                raise
            self._take(order, files)

        return check

    def uploads(self, assignment: str, size: int) -> None:
        """Count an update that is about to be sent, once.

        What the disk does not take is counted in memory, and with the next thing that it does take: the update is
        there, and one that is sent after a restart is counted then.
        """
        try:
            self._account.upload(self._today(), assignment, size)
        except OSError as error:
            log.warning("an update of %d bytes is counted in memory alone: %s; free disk space", size, error)

    def worked(self, cpu_s: float) -> None:
        """Count the processor time of a training that ended; as :meth:`uploads` where the disk is full."""
        try:
            self._account.work(self._today(), cpu_s)
        except OSError as error:
            log.warning("%.0f s of the processor are counted in memory alone: %s; free disk space", cpu_s, error)

    def _take(self, order: WorkOrder, size: int) -> None:
        try:
            self._account.take(self._today(), order.assignment_id, size)
        except OSError as error:
            raise StoreFull(f"order {order.assignment_id[:12]} cannot be counted: {error}; free disk space") from error

    def _today(self) -> str:
        return time.strftime("%Y-%m-%d", self._clock())

    def _check_kind(self, order: WorkOrder) -> None:
        policy = self.policy
        if policy.federations is not None and order.federation not in policy.federations:
            raise PolicyRefused(f"$.federations: {list(policy.federations)}, the order is of '{order.federation}'")
        if not order.method and (policy.methods.allow is not None or policy.methods.deny):
            raise PolicyRefused("$.methods: the order does not say its method; the coordinator is of an older release")
        if rule := policy.methods.forbids(order.method):
            raise PolicyRefused(f"$.methods.{rule}, the order's method is '{order.method}'")
        if order.report_labels and not policy.orders.labels:
            raise PolicyRefused("$.orders.labels: false, the order asks which classes the examples are of")
        scored = order.held_out_share
        if scored is not None and scored.program and not policy.orders.scores:
            raise PolicyRefused("$.orders.scores: false, the order asks for sums over held-out examples")
        if (release := order.installation) is not None and not policy.orders.releases:
            raise PolicyRefused(f"$.orders.releases: false, the order installs '{release.name}'")
        limit = policy.memory.max_mb
        if limit is not None and order.peak_bytes > limit * MEMORY_MB:
            raise PolicyRefused(f"$.memory.max-mb: {limit:g}, the order takes {order.peak_bytes / MEMORY_MB:.1f}")

    def _check_privacy(self, order: WorkOrder) -> None:
        rules = self.policy.privacy
        if order.installation is not None:  # nothing of the device's data leaves with it
            return
        if rules.require_secure_aggregation and order.masking is None:
            raise PolicyRefused("$.privacy.require-secure-aggregation: true, the order's update is not masked")
        if rules.require_clipping and (order.masking is None or not order.masking.clip_norm > 0):
            raise PolicyRefused("$.privacy.require-clipping: true, the order's update is not clipped on the device")

    def _check_bytes(self, order: WorkOrder, down: int, up: int, *, counted: int = 0) -> None:
        """``down`` and ``up`` of the whole order, of which ``counted`` are in the day's account."""
        rules, day = self.policy.bytes, self._account.of(self._today())
        for way, size, per_round, per_day, today in (
            ("download", down, rules.download_per_round_mb, rules.download_per_day_mb, day.down - counted),
            ("upload", up, rules.upload_per_round_mb, rules.upload_per_day_mb, day.up),
        ):
            if per_round is not None and size > per_round * MB:
                raise PolicyRefused(f"$.bytes.{way}-per-round-mb: {per_round:g}, the order takes {size / MB:.3g}")
            if per_day is not None and size > per_day * MB:
                raise PolicyRefused(f"$.bytes.{way}-per-day-mb: {per_day:g}, the order alone takes {size / MB:.3g}")
            if per_day is not None and today + size > per_day * MB:
                raise PolicyWaits(
                    f"$.bytes.{way}-per-day-mb: {per_day:g}, {today / MB:.3g} are used today and the order takes "
                    f"{size / MB:.3g}"
                )

    def _check_time(self, order: WorkOrder) -> None:
        rules, now = self.policy.rounds, self._clock()
        minute = now.tm_hour * 60 + now.tm_min
        windows = rules.windows
        if windows and not any(window.holds(minute) for window in windows):
            allowed = ", ".join(f'"{window}"' for window in windows)
            raise PolicyWaits(f"$.rounds.hours: {allowed}, it is {now.tm_hour:02d}:{now.tm_min:02d}")
        day = self._account.of(self._today())
        is_new = order.assignment_id not in day.orders
        if rules.per_day is not None and is_new and day.order_count >= rules.per_day:
            raise PolicyWaits(f"$.rounds.per-day: {rules.per_day}, as many orders were taken today")
        limit = rules.cpu_seconds_per_day
        if limit is not None and is_new and day.cpu_s >= limit:
            raise PolicyWaits(f"$.rounds.cpu-seconds-per-day: {limit:g}, {day.cpu_s:.0f} were used today")


def _size_of(order: WorkOrder, held: Held) -> int:
    """Bytes that the order names itself and that are not here; those of its files are in the manifest."""
    return sum(_encoded(ref) for ref in order.blobs if not held(ref.digest))


def _encoded(ref: BlobRef) -> int:
    return ref.encoded_size or ref.size


def _update_bytes(order: WorkOrder, manifest: ArtifactManifest) -> int:
    """The most bytes an update of ``order`` has: not compressed, masked layers whole."""
    try:
        whole = sum(manifest.tensor(name.removesuffix(KEPT)).byte_count() for name in order.upload)
    except PlanError:
        return 0  # whoever prepares the training says what is wrong with it
    return whole * _BYTES_OF[order.precision] // _BYTES_OF["fp32"]
