"""One value of every contract, each field set to something else than its default, so that a golden file shows it."""

from __future__ import annotations

import msgspec
import numpy as np

from edge.contracts.claims import (
    ClaimLink,
    ClaimRefusal,
    ClaimReply,
    ClaimRequest,
    KeyClaimReply,
    KeyClaimRequest,
    Refused,
)
from edge.contracts.identity import KeyStatement, Renew, Renewed, Signers
from edge.contracts.manifest import (
    ArtifactFile,
    ArtifactManifest,
    Cost,
    GraphOutput,
    InputSpec,
    Parity,
    Program,
    SelfTest,
)
from edge.contracts.masking import (
    Checked,
    Complaint,
    Dispute,
    Keys,
    Mail,
    Masking,
    Member,
    Opening,
    Proceed,
    Reveal,
    Revealed,
    Roster,
    Shares,
)
from edge.contracts.messages import (
    Accept,
    Ack,
    Block,
    Bye,
    Error,
    Get,
    Grant,
    Heartbeat,
    Hello,
    Offer,
    Put,
    Refuse,
)
from edge.contracts.plan import BlobRef, Schedule, Turn, WorkOrder
from edge.contracts.report import TrainReport
from edge.contracts.tensors import TensorSpec
from profiles.device import CoreGroup, DeviceProfile, MemoryLine, StepLine
from profiles.step_work import StepWork

A, B, C = "a1" * 32, "b2" * 32, "c3" * 32

PROFILE = DeviceProfile(
    device="pi-07",
    budget_bytes=160_000_000,
    ram_bytes=4_000_000_000,
    free_ram_bytes=3_000_000_000,
    cpu_count=4,
    cpu_model="Cortex-A72",
    machine="aarch64",
    system="Linux 6.1",
    storage_free_bytes=10_000_000_000,
    temperature_c=48.5,
    battery_percent=80.0,
    charging=True,
    supervisor_idle_bytes=30_000_000,
    trainer_idle_bytes={"onnxruntime": 63_000_000},
    probed_at=1_760_000_000.5,
    max_threads={"executorch": 1},
    sparse_below={"executorch": {"linear": 0.24}},
    board="Raspberry Pi 4 Model B Rev 1.4",
    cores=(CoreGroup(name="Cortex-A72", count=4, max_mhz=1500.0),),
    cpu_mhz=600.0,
    cpu_max_mhz=1500.0,
    throttling=("under-voltage",),
    memory_limit_bytes=2_000_000_000,
    storage_total_bytes=30_000_000_000,
    link_bytes_per_s=1_440_000.0,
    link_measured_at=1_760_000_000.25,
    link_method="upload of a round",
    os_name="Debian GNU/Linux 12 (bookworm)",
    python="3.11.2",
    runtimes={"onnxruntime": "1.31.1"},
    sources={"ram_bytes": "/proc/meminfo MemTotal"},
    memory_lines={
        "onnxruntime": MemoryLine(0.9, 1_000_000, 2_000_000, 12, 1_760_000_000.5, 15_000_000, 12_000_000, 48.5)
    },
    step_lines={"onnxruntime": (StepLine(1, 0.5, 40.0, 0.1, 0.07, 12, 1_760_000_000.5, 0.02, 0.5, 12.0, 2.0, 8.0),)},
)

ORDER = WorkOrder(
    assignment_id=A,
    federation="digits",
    device="pi-07",
    round=3,
    attempt=1,
    artifact=BlobRef(digest=B, size=2000, encoding="raw", encoded_size=2000),
    weights=BlobRef(digest=C, size=4000, encoding="zstd", encoded_size=3000),
    schedule=Schedule(epochs=0, steps=8, turns=(Turn("train_u", False), Turn("train_v"))),
    batch=16,
    last_batch="wrap",
    data_seed=18_446_744_073_709_551_615,
    hyper={"lr": 0.05, "frobenius_lambda": 1e-4},
    upload=("fc1.u", "fc1.v"),
    deadline_s=59.5,
    peak_bytes=120_000_000,
    threads=2,
    encoding="zstd",
    constants=BlobRef(digest=A, size=900, encoding="raw", encoded_size=900),
    report_labels=True,
    artifact_signature=bytes(range(64)),
    bulk="https://broker.local:8443/v1/ticket/",
    precision="int8",
    cut_digest=C,
    masking=Masking(step=2.0**-20, largest=200_000_000, max_weight=150, is_weighted=False, clip_norm=0.5),
    summable=True,
    upload_to="https://broker.local:8443/v1/pi-1.1760000000.0f/upload/",
    run="0123456789abcdef0123456789abcdef",
)

REPORT = TrainReport(
    assignment_id=A,
    device="pi-07",
    round=3,
    num_examples=150,
    steps=8,
    loss=1.25,
    metrics={"accuracy": 0.5},
    step_ms_p50=4.5,
    step_ms_p95=6.25,
    trainer_peak_bytes=90_000_000,
    supervisor_peak_bytes=31_000_000,
    trainer_idle_bytes=63_000_000,
    budget_bytes=160_000_000,
    over_budget=False,
    torch_loaded=False,
    runtime="onnxruntime 1.31.1",
    bytes_down=5000,
    bytes_up=4000,
    update=BlobRef(digest=C, size=4000, encoding="raw", encoded_size=4000),
    wall_s=2.5,
    temperature_c=50.0,
    battery_percent=79.0,
    threads=1,
    labels=(0, 3, 9),
    site_devices=8,
)

BODIES: dict[str, msgspec.Struct] = {
    "hello": Hello(
        device="pi-07",
        agent_version="0.1.0",
        profile=PROFILE,
        runtimes={"onnxruntime": "1.31.1"},
        num_examples=150,
        data_error="label 11 in 3.png",
        state="training",
        assignment_id=A,
        block_bytes=65_536,
        window=2,
        abilities=("masking",),
    ),
    "heartbeat": Heartbeat(
        state="waiting",
        assignment_id=A,
        step=3,
        total_steps=8,
        loss=1.5,
        reason="battery 15 %",
        waiting_for="battery",
    ),
    "bye": Bye("connection lost"),
    "profile": PROFILE,
    "order": ORDER,
    "accept": Accept(A),
    "refuse": Refuse(
        assignment_id=A, code="device-refused", reason="too big", needed_bytes=2, budget_bytes=1, peak_bytes=3
    ),
    "get": Get(digest=B, encoding="raw", offset=65_536, length=131_072),
    "block": Block(digest=B, offset=65_536, total=200_000, data=b"\x00\x01\xfe\xff"),
    "offer": Offer(A, BlobRef(digest=C, size=4000, encoding="raw", encoded_size=4000)),
    "grant": Grant(assignment_id=A, digest=C, offset=100, block_bytes=65_536, window=4),
    "put": Put(assignment_id=A, digest=C, offset=100, data=b"\x80bytes"),
    "report": REPORT,
    "ack": Ack(assignment_id=A, accepted=False, code="update-rejected", reason="NaN in fc1.u"),
    "keys": Keys(A, b"\x01" * 32, b"\x02" * 32),
    "roster": Roster(A, 2, (Member("pi-07", b"\x01" * 32, b"\x02" * 32), Member("pi-08", b"\x03" * 32, b"\x04" * 32))),
    "shares": Shares(A, {"pi-08": b"\x05" * 244}, b"\x06" * 64, b"\x07" * 32),
    "mail": Mail(A, {"pi-08": b"\x06" * 244}),
    "checked": Checked(A),
    "complaint": Complaint(A, "pi-08", b"\x08" * 32),
    "dispute": Dispute(A, "pi-08"),
    "opening": Opening(A, "pi-08", b"\x0c" * 32),
    "proceed": Proceed(A),
    "reveal": Reveal(A, ("pi-07",), ("pi-08",)),
    "revealed": Revealed(A, {"pi-07": b"\x07" * 66}, {"pi-08": b"\x08" * 66}),
    "renew": Renew("-----BEGIN CERTIFICATE REQUEST-----\nMII=\n-----END CERTIFICATE REQUEST-----\n"),
    "renewed": Renewed("-----BEGIN CERTIFICATE-----\nMII=\n-----END CERTIFICATE-----\n"),
    "signers": Signers((KeyStatement(1, (b"\x09" * 32, b"\x0a" * 32), b"\x0b" * 64),)),
    "error": Error(code="bad-message", message="truncated", about=B),
}

MANIFEST = ArtifactManifest(
    format="onnx_step",
    runtime="onnxruntime",
    minimum_runtime_version="1.20",
    programs=(
        Program(
            name="train",
            file="train.onnx",
            inputs=("x", "y", "fc1.weight", "fc1.weight#momentum", "lr"),
            outputs=(
                GraphOutput("fc1.weight.next", "fc1.weight"),
                GraphOutput("fc1.weight#momentum.next", "fc1.weight#momentum"),
                GraphOutput("loss", "loss"),
            ),
        ),
        Program(
            name="eval", file="eval.onnx", inputs=("x", "fc1.weight"), outputs=(GraphOutput("z", "logits"),), batch=16
        ),
    ),
    tensors=(
        TensorSpec("x", ("batch", 64), "float32", "input"),
        TensorSpec("y", ("batch",), "int64", "target"),
        TensorSpec("fc1.weight", (10, 64), "float32", "parameter"),
        TensorSpec("fc1.weight#momentum", (10, 64), "float32", "slot"),
        TensorSpec("fc1.weight#mask", (10, 64), "bool", "grad_mask", 200),
        TensorSpec("lr", (), "float32", "hyper"),
        TensorSpec("fc1#draw", ("batch", 64), "bool", "draw", probability=0.9),
        TensorSpec("loss", (), "float32", "loss"),
        TensorSpec("logits", ("batch", 10), "float32", "metric"),
    ),
    files=(ArtifactFile("train.onnx", A, 1000), ArtifactFile("eval.onnx", B, 500)),
    batch=16,
    micro_batches=4,
    loss="cross_entropy",
    optimizer="sgd",
    norm="running",
    input=InputSpec(
        layout="features",
        shape=(64,),
        dtype="float32",
        mean=(0.25,),
        std=(0.5,),
        scale=0.0625,
        augment=("flip",),
        vocabulary=7,
    ),
    classes=tuple("0123456789"),
    cost=Cost(
        parameters=640,
        trained_parameters=640,
        macs=640,
        state_bytes=5120,
        live_bytes=12_000,
        predicted_peak_bytes=2_000_000,
        batch=16,
        predicted_step_ms=0.5,
        graph_bytes=9_000,
        step_work=StepWork(1_000, 4_000, 20_000),
    ),
    self_test=SelfTest(
        formula="splitmix64-uniform/2",
        seed=5,
        batch=4,
        hyper={"lr": 0.1},
        losses=(2.5, 2.25, 2.0),
        rel_tolerance=1e-4,
        bias=2.0,
        gain=0.25,
    ),
    parity=Parity(max_grad_rel_err=1e-6, torch_fp32_rel_err=2e-6, loss_rel_err=1e-7, tolerance=1e-5, steps=4),
    build={"model": "mlp", "cut": {"fc1": {"frozen": True}}},
    export_key=C,
)

TENSORS: dict[str, np.ndarray] = {
    "fc1.u": np.arange(6, dtype=np.float32).reshape(3, 2) / 4,
    "fc1.v": np.arange(4, dtype=np.float16).reshape(2, 2),
    "bn.num_batches_tracked": np.asarray(7, dtype=np.int64),
    "mask": np.asarray([True, False, True]),
    "empty": np.zeros((0, 3), dtype=np.float32),
}

CLAIM_LINK = ClaimLink("https://192.168.1.10:8443", "0123456789abcdef." + "S" * 43, A, "pi-07")

CLAIMS: dict[str, ClaimRequest | ClaimReply | ClaimRefusal | KeyClaimRequest | KeyClaimReply] = {
    "claim_request": ClaimRequest(CLAIM_LINK.token, "-----BEGIN CERTIFICATE REQUEST-----\n"),
    "claim_reply": ClaimReply(
        device="pi-07",
        certificate="-----BEGIN CERTIFICATE-----\n",
        ca="-----BEGIN CERTIFICATE-----\n",
        signing_public="-----BEGIN PUBLIC KEY-----\n",
        federation="digits",
        broker="mqtts://broker.local",
    ),
    "key_claim_request": KeyClaimRequest(CLAIM_LINK.token, "MFkwEwYHKoZIzj0CAQ==", "c2lnbmF0dXJl"),
    "key_claim_reply": KeyClaimReply(
        device="pi-07",
        federation="digits",
        broker="wss://broker.local:8084",
        user="pi-07",
        password="P" * 43,
        signing_public="-----BEGIN PUBLIC KEY-----\n",
    ),
    "claim_refusal": ClaimRefusal(Refused("token-used", "the claim token for 'pi-07' was used", "make another")),
}
