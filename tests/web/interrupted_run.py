"""A run of one phone that is interrupted: small enough for seconds, long enough to be caught in the middle."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, Page, Route
from playwright.sync_api import Error as PlaywrightError

from coordinator.blobs.blob_store import BlobStore
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment
from edge.contracts.manifest import ArtifactManifest
from tests.web.federation_site import Site, federation_site
from tests.web.phone import Phone, wait_until
from tests.web.phone_trace import Trace

DEVICE = "device-00"
EXAMPLES = 300
PATIENCE_S = 30.0

# 1.2 MB of weights: three requests to fetch them, ten blocks to send the update.
RUN = """
[federation]
name = "interrupted"
seed = 1
rounds = {rounds}

[model]
build = "mlp"
input = [64]
classes = 10
options = {{ hidden = [512, 512] }}

[method]
name = "fedavg"

[training]
epochs = 150
batch = 16
last-batch = "keep"
lr = 0.05
momentum = 0.9

[evaluation]
every = 0

[data]
source = "digits"
scale = 0.0625

[cohort]
size = 1
min-reports = 1
deadline-s = 100
join-timeout-s = 60

[runtime]
name = "onnxruntime_web"
"""

_IS_AT = """([state, round]) => {
  const text = name => document.querySelector(`#view-training ${name}`)?.textContent ?? "";
  const step = Number(/Step (\\d+)/.exec(document.querySelector("#view-training").textContent)?.[1] ?? 0);
  return text(".state") === state && document.querySelector("#view-training").textContent.includes(round) &&
    (state !== "Training" || step > 0);
}"""

# A page cannot be told from outside at which block to stop: it is over within a few milliseconds.
_DYING_LINK = """blocks => {
  const send = WebSocket.prototype.send;
  let left = blocks;
  WebSocket.prototype.send = function (data) {
    if (left > 0) send.call(this, data);
    if (data.byteLength > 8192) left -= 1;
  };
}"""


@dataclass
class InterruptedRun:
    """The site, its phone, and what the phone asks for and says."""

    site: Site
    phone: Phone
    trace: Trace
    rounds: int

    def wait_for(self, state: str, round_number: int, timeout_s: float = PATIENCE_S) -> None:
        """Until the page shows ``state`` in the round of that number, from 1; training: a step done."""
        argument = [state, f"Round {round_number}"]
        try:
            self.phone.page.wait_for_function(_IS_AT, arg=argument, timeout=timeout_s * 1000, polling=50)
        except PlaywrightError as error:
            raise AssertionError(f"never {argument}: {self.phone.words()}\n{self.site.log()[-1500:]}") from error

    def wait_until_committed(self, rounds: int, timeout_s: float = PATIENCE_S) -> None:
        """Until so many rounds are in the ledger."""
        wait_until(lambda: self.committed() >= rounds, timeout_s, f"{rounds} rounds", self.phone.page)

    def committed(self) -> int:
        """Rounds so far."""
        if not (self.site.run_dir / "ledger.sqlite").exists():
            return 0
        with Ledger.open(self.site.run_dir / "ledger.sqlite") as ledger:
            return sum(each.state == "committed" for each in ledger.rounds.all())

    def assignment(self, round_number: int) -> Assignment:
        """Of the phone in that round, from 1."""
        with Ledger.open(self.site.run_dir / "ledger.sqlite") as ledger:
            (found,) = ledger.assignments.of_attempt(round_number - 1, 0)
        return found

    @contextlib.contextmanager
    def fetch_held(self, at_least: int) -> Iterator[list[Route]]:
        """Requests for the second and later pieces of a blob of that size get no answer while this is open."""
        held: list[Route] = []

        def hold(route: Route) -> None:
            start = int(route.request.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
            if start >= at_least:
                held.append(route)
            else:
                route.continue_()

        self.phone.context.route("**/v1/*/*", hold)
        try:
            yield held
        finally:
            self.phone.context.unroute("**/v1/*/*")

    def link_dies_after(self, blocks: int) -> None:
        """From that block of an update on, nothing that the page sends arrives; until it is loaded anew."""
        self.phone.evaluate(_DYING_LINK, blocks)

    def check(self, page: Page | None = None) -> None:
        """It ends; every round took one attempt, one update counts in each, and no file was fetched twice.

        ``page`` is one in front, where the phone's is hidden.
        """
        wait_until(self.site.is_over, 100, "the end of the run", page or self.phone.page)
        self.site.summary(timeout_s=5)
        with Ledger.open(self.site.run_dir / "ledger.sqlite") as ledger:
            rounds = ledger.rounds.all()
            assert [(each.round, each.attempt, each.state) for each in rounds] == [
                (number, 0, "committed") for number in range(self.rounds)
            ]
            for each in rounds:
                (assignment,) = ledger.assignments.of_attempt(each.round, each.attempt)
                assert (assignment.device, assignment.state) == (DEVICE, "reported")
                (update,) = ledger.updates.of_attempt(each.round, each.attempt)
                assert update.assignment.assignment_id == assignment.assignment_id
                assert each.participants == (DEVICE,)
        for digest in self.artifact():
            ranges = [range_ for asked, range_ in self.trace.asked if asked == digest]
            assert ranges, f"{digest} was never asked for over HTTPS"
            assert len(ranges) == len(set(ranges)), f"{digest} was fetched again: {ranges}"
        self.check_messages()

    def puts(self, round_number: int) -> list[int]:
        """Offsets of the blocks of that round's update, as they were sent or dropped."""
        return [each.body["offset"] for each in self.trace.said("put", self.assignment(round_number).assignment_id)]

    def artifact(self) -> list[str]:
        """Digests of the manifest and of the files that it lists."""
        manifest = self.assignment(1).artifact_digest
        blobs = BlobStore(self.site.run_dir / "blobs")
        files = ArtifactManifest.from_bytes(blobs.path(manifest).read_bytes()).files
        return [manifest, *(each.sha256 for each in files)]

    def check_messages(self) -> None:
        """Every connection begins with a hello, and work is done in its order."""
        spoken = [connection for connection in self.trace.connections if connection.said]
        assert spoken
        for connection in spoken:
            assert connection.said[0].kind == "hello", [each.kind for each in connection.said[:5]]
        for number in range(self.rounds):
            found = self.assignment(number + 1).assignment_id
            kinds = [
                each.kind
                for connection in spoken
                for each in connection.said
                if each.body.get("assignment_id") == found and each.kind in ("accept", "offer", "put", "report")
            ]
            first = [kinds.index(kind) for kind in ("accept", "offer", "put", "report")]
            assert first == sorted(first), kinds
            assert kinds[-1] == "report"


@contextlib.contextmanager
def interrupted_run(
    folder: Path, phone_of: Browser | Phone, rounds: int, *, broker: str = "mosquitto"
) -> Iterator[InterruptedRun]:
    """Started; its phone has joined and has no examples yet, so nothing is ordered."""
    with federation_site(folder, RUN.format(rounds=rounds), broker=broker, phones=[DEVICE]) as (site, links):
        site.start()
        phone = phone_of if isinstance(phone_of, Phone) else Phone(phone_of)
        try:
            run = InterruptedRun(site, phone, Trace(phone), rounds)
            phone.join(links[DEVICE])
            yield run
        finally:
            phone.close()


def give_examples(phone: Phone, folder: Path) -> None:
    """The first of the digits, and the page shows its training."""
    from coordinator.data.datasets import load_dataset

    data = load_dataset("digits", Path(), 1)
    path = folder / "digits.npz"
    np.savez(path, x=data.x_train[:EXAMPLES], y=data.y_train[:EXAMPLES])
    phone.add_file(path, examples=EXAMPLES)
    phone.tab("training")
