"""What becomes of an order that installs a model: its files put in use, and the report of it. No trainer takes part."""

from __future__ import annotations

from edge.contracts.errors import StoreFull
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.report import TrainReport
from edge.releases.installed import EMPTY_DIGEST, EMPTY_UPDATE, Releases
from edge.supervisor.assignment import Assignment
from edge.supervisor.finished_work import FinishedWork
from edge.supervisor.presence import Presence
from edge.supervisor.settings import AgentSettings
from edge.supervisor.trainer_messages import Trained
from edge.transfer.artifact_store import ArtifactStore


def installed(
    work: Assignment,
    manifest: ArtifactManifest,
    settings: AgentSettings,
    store: ArtifactStore,
    finished: FinishedWork,
    presence: Presence,
) -> TrainReport:
    """The report of ``work``, whose model is in use from now on.

    Raises:
        MessageRejected: the parts do not belong together; StoreFull: the disk has no room.
    """
    Releases(store.root).install(work.order, manifest, store.path)
    try:
        finished.new_update_path(work.order.assignment_id).write_bytes(EMPTY_UPDATE)
    except OSError as error:
        raise StoreFull(f"{store.root}: {error}; free disk space") from error
    return work.report(
        settings,
        Trained(
            assignment_id=work.order.assignment_id,
            digest=EMPTY_DIGEST,
            size=len(EMPTY_UPDATE),
            encoded_size=len(EMPTY_UPDATE),
            num_examples=presence.num_examples,
            steps=0,
            loss=0.0,
            metrics={},
            step_ms_p50=0.0,
            step_ms_p95=0.0,
            peak_bytes=0,
            idle_bytes=0,
            torch_loaded=False,
            threads=0,
        ),
    )
