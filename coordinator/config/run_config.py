"""The run file: what ``apportion run CONFIG`` reads, as frozen structs, every problem in it reported at once.

This page is the reference of its keys (TOML: kebab-case, one table per class). What the values do is told where they
are used; how tables are read and problems gathered is :mod:`coordinator.config.table_reader`'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from coordinator.config.aggregation import AggregationConfig, DefencesConfig, UpdatesConfig
from coordinator.config.clusters import ClustersConfig
from coordinator.config.cohort import CohortConfig, PlannerConfig, RuntimeConfig
from coordinator.config.personal import PersonalConfig
from coordinator.config.privacy import PrivacyConfig
from coordinator.config.server_optimizer import ServerOptimizerConfig
from coordinator.config.task import TaskConfig
from coordinator.config.tracking import TrackingConfig
from coordinator.config.training import TrainingConfig


class FederationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[federation]``: ``name`` (part of every topic), ``seed`` of every stream, number of ``rounds``.

    Attributes:
        name: the federation's name, part of every topic: letters, digits, dots, dashes. Example: ``"digits"``.
        seed: where every random stream of the run begins; equal seeds give equal runs. Example: ``7``.
        rounds: number of rounds. Example: ``50``.
        patience: evaluations in a row without a better one after which training ends; not given, 0: never. Example:
            ``5``.
        metric: what says which of two global models is better: ``accuracy``, ``loss``, or one of the task's. Example:
            ``"loss"``.
        keep_best: leave the best evaluated model in ``checkpoints/best.safetensors``; as ``patience`` does. Example:
            ``true``.
        keep_every: leave the model of each so many rounds in ``checkpoints/round-NNNNN.safetensors``; not given, 0:
            none. Example: ``10``.
    """

    name: str
    seed: int = 0
    rounds: int
    patience: int = 0
    metric: str = "accuracy"
    keep_best: bool = False
    keep_every: int = 0


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[model]``: the dense torch module.

    Attributes:
        build: a name of ``coordinator.models``, ``timm:NAME``, ``torchvision:NAME``, ``transformers:TYPE``,
            ``language:NAME`` (a language model: a public shape, ``custom``, or a folder of its files), or
            ``package.module:function``. Example: ``"resnet20"``.
        input: shape of one example; empty = the model's own. Example: ``[3, 32, 32]``.
        vocabulary: of an own model that takes symbols, 0 to this less 1; not given, 0: it takes numbers. Example:
            ``5000``.
        classes: their names in order; ``classes = 10`` in the file names them "0" to "9". Empty = the model's own. With
            a task what the model gives: outputs, or a vocabulary. Example: ``["cat", "dog"]``.
        options: ``[model.options]``, handed to the builder. Example: ``{ width = 64 }``.
        weights: safetensors file with the first weights, such as a pretrained base's; empty = drawn from the seed.
            Example: ``"base.safetensors"``.
        weights_except: name patterns of tensors that are drawn all the same. Example: ``["head.*"]``.
        weights_map: ``[model.weights-map]``, patterns of the file's names and the model's names for them; or the name
            of one of ``coordinator.exporting.weight_names.MAPS``. Example: ``{ "encoder.*" = "body.*" }``.
    """

    build: str
    input: tuple[int, ...] = ()
    vocabulary: int = 0
    classes: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    weights: str = ""
    weights_except: tuple[str, ...] = ()
    weights_map: str | dict[str, str] = ""


class MethodConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[method]``: ``name`` and the method's own options, every other key of the table; the method checks them.

    Attributes:
        name: the method's name, or ``package.module:Class`` for one of your own. Example: ``"fedhm"``.
        options: every other key of the table: the method's own options, which the method checks. Example: ``{ levels =
            [1, 8, 32] }``.
    """

    name: str
    options: dict[str, Any] = {}


class DataConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[data]``: the data the coordinator evaluates on and hands to devices it starts itself.

    Attributes:
        source: a name of ``coordinator.data.datasets``, ``folder`` for files in ``path``, or
            ``package.module:function``. May be left out where ``[evaluation] data`` is given and devices bring theirs.
            Example: ``"digits"``.
        path: folder of the source; APPORTION_DATA when the source needs one and the file names none. Example:
            ``"data/mnist"``.
        partition: how examples are dealt to local devices, told in ``coordinator.data.partition``: ``iid``;
            ``file-order`` (equal slices, not shuffled); over classes with ``alpha``: ``dirichlet``, ``dirichlet-equal``
            (PriSM), ``dirichlet-groups`` (FedHM), ``dirichlet-multinomial`` (SLT); by natural owner: ``writer`` (one
            per device, lowest ids first), ``writer-groups`` (all of them, as many per device: PruneFL). Example:
            ``"dirichlet"``.
        alpha: concentration of the Dirichlet distribution: the smaller, the more devices differ in their classes.
            Example: ``0.5``.
        devices: parts the data is dealt into; the number of local devices unless given. Example: ``8``.
        scale: values become ``(x * scale - mean) / std``. Example: ``0.0625``.
        mean: taken off the scaled values; one value, or one per channel. Example: ``[0.305]``.
        std: what they are divided by; one value, or one per channel. Example: ``[0.376]``.
        augment: named augmentations while training: ``flip``; ``crop4``, 4 pixels on every side, or as many as follow
            ``crop``. Example: ``["flip", "crop4"]``.
    """

    source: str
    path: str = ""
    partition: Literal[
        "iid",
        "file-order",
        "dirichlet",
        "dirichlet-equal",
        "dirichlet-groups",
        "dirichlet-multinomial",
        "writer",
        "writer-groups",
    ] = "iid"
    alpha: float = 0.5
    devices: int = 0
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    augment: tuple[str, ...] = ()


Precision = Literal["float32", "bfloat16"]
"""Of the factors of products."""


class EvaluationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[evaluation]``: at the coordinator, in file order, and on the devices.

    Attributes:
        batch: examples in one batch of the evaluation. Example: ``256``.
        every: rounds from one evaluation to the next, 0 for none; the last round is always evaluated. Example: ``5``.
        norm: statistics of batch norms: ``static`` (a statistics pass), of the ``batch``, or ``running`` ones. Example:
            ``"running"``.
        holdout: share of the examples held out, for sources that have no test set of their own. Example: ``0.2``.
        data: folder of the held-out examples, read as a device reads its own; in place of the source's. Example:
            ``"held-out"``.
        devices: share of its own examples that each device keeps out of its training and scores the models on that it
            is sent; not given, 0: none. Example: ``0.2``.
        devices_least: examples that such a share needs to be scored; a device with fewer is left out. Example: ``10``.
        choices: file of questions with choices that a language model is scored on; a ``data.toml`` beside it names
            their tokenizer, else the model's folder has it. Example: ``"questions.jsonl"``.
        precision: of the factors of products when the coordinator scores a classifier, ``float32`` or ``bfloat16``.
            Example: ``"bfloat16"``.
    """

    batch: int = 256
    every: int = 1
    norm: Literal["static", "batch", "running"] = "static"
    holdout: float = 1 / 3
    data: str = ""
    devices: float = 0.0
    devices_least: int = 10
    choices: str = ""
    precision: Precision = "float32"


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """``tls = { ca = ..., cert = ..., key = ... }``: PEM files; ``ca`` alone checks the broker, the others are ours.

    Attributes:
        ca: certificate of the authority that signed the broker's. Example: ``"ca.pem"``.
        cert: our own certificate, where the broker asks for one; with ``key``. Example: ``"coordinator.pem"``.
        key: its private key. Example: ``"coordinator.key"``.
    """

    ca: str
    cert: str = ""
    key: str = ""


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[broker]``: where messages go.

    Attributes:
        url: ``embedded`` (started here), ``mosquitto`` (started here, from PATH), or ``mqtt://`` or ``mqtts://``.
            Example: ``"mqtts://broker.local:8883"``.
        tls: for a broker started here: make throw-away certificates. Otherwise files, or true for the system's.
            Example: ``{ ca = "ca.pem" }``.
        user: user name at a broker that asks for one; with ``password_env``. Example: ``"coordinator"``.
        password_env: name of the environment variable that holds the password; it is never in a file. Example:
            ``"BROKER_PASSWORD"``.
        identity: folder that ``apportion ca init`` made: connections by certificate, manifests and orders signed. For
            ``mosquitto`` and ``mqtts://``. Example: ``"identity"``.
        bulk: ``https://host:port`` where this coordinator serves blobs, beside the broker; needs ``identity``. Example:
            ``"https://coord.local:8443"``.
        web: ``https://host:port`` where browsers find the page, claims and blobs; needs ``identity``. ``http://`` for
            this machine alone. Example: ``"https://coord.local:8444"``.
        web_certificate: PEM file with the full chain for the host of ``web``, from an authority that phones trust
            already; the identity's own where empty. The listener for browsers of a broker that the run starts has it
            too. Example: ``"fullchain.pem"``.
        web_key: PEM file with the private key of ``web_certificate``. Example: ``"privkey.pem"``.
        web_socket: ``wss://host:port[/path]`` where browsers reach a broker that the run does not start. Example:
            ``"wss://broker.local:8084"``.
        folder: that broker's folder, as ``apportion ca mosquitto --out`` wrote it, where it is here: each browser that
            joins is made known to it. Example: ``"broker"``.
        address_connections: of the 512 connections that ``bulk`` and ``web`` have each, those that an address keeps
            when there is no room; 0: a quarter. More for devices behind one proxy or router. Example: ``256``.
    """

    url: str = "embedded"
    tls: bool | TlsFiles = False
    user: str = ""
    password_env: str = ""
    identity: str = ""
    bulk: str = ""
    web: str = ""
    web_certificate: str = ""
    web_key: str = ""
    web_socket: str = ""
    folder: str = ""
    address_connections: int = 0

    @property
    def knows_certificates(self) -> bool:
        """Whether devices have certificates of the identity: at a broker in this process they have none."""
        return bool(self.identity) and self.url != "embedded"


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[store]``: where a run keeps what must not be lost.

    Attributes:
        dir: folder of the blobs; empty = in the run's directory. With ``blobs``: of the copies kept here. Example:
            ``"/var/lib/apportion/blobs"``.
        quota_mb: largest size of that folder in MB; 0 = no limit. Example: ``2000``.
        blobs: ``s3://bucket/prefix`` or another address that fsspec knows; empty = the folder alone. Example:
            ``"s3://bucket/runs/first"``.
        ledger: ``postgresql://...``; empty = a SQLite file in the run's directory. Example:
            ``"postgresql://apportion@db.example/apportion"``.
        lease_s: with a ledger of several coordinators, seconds after which a silent one's work is taken over. Example:
            ``30``.
        shards: parts that the devices are divided into, each served by one of the coordinators; 1 = the one that leads
            serves all. Example: ``8``.
    """

    dir: str = ""
    quota_mb: float = 0.0
    blobs: str = ""
    ledger: str = ""
    lease_s: float = 15.0
    shards: int = 1


TORCH = "torch"
"""Computes a simulation's steps where no device runtime does."""


class SimulationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[simulation]``: how fast simulated devices are, and how steps compute; read by ``apportion simulate`` alone.

    Attributes:
        runtime: what computes the steps: ``torch``, or a device runtime that is installed here, whose artifacts are
            exported and checked as for devices, and whose results are theirs to the bit. Example: ``"torch"``.
        precision: of the factors of a training step's products, ``float32`` or ``bfloat16``; sums, weights and updates
            are float32 with either. Example: ``"bfloat16"``.
        time_model: seconds of a round by kept weights instead of by the profile below: a published one of PruneFL's
            (``pi4-conv2``, ``pi4-vgg11``, ``android-resnet18``) for every method, or ``method``, the method's own.
            Example: ``"pi4-conv2"``.
        profile: a name of ``coordinator.config.device_speed``; the values below replace its own when above 0. Example:
            ``"raspberry-pi-4"``.
        gmac_per_s: 10^9 forward multiply-accumulates (of a whole batch) per second of a training step. Example:
            ``0.5``.
        step_overhead_ms: what every step takes beside that. Example: ``2.0``.
        link_mbit: 10^6 bits per second between a device and the coordinator, each way. Example: ``20``.
        latency_ms: added to a round for each device. Example: ``40``.
        idle_mb: memory of supervisor and trainer before any step, for groups with a budget and no level; 0 = what
            an agent of the group's runtime weighs, as measured on x86-64. Example: ``71``.
    """

    runtime: str = TORCH
    precision: Precision = "float32"
    time_model: str = ""
    profile: str = "raspberry-pi-4"
    gmac_per_s: float = 0.0
    step_overhead_ms: float = 0.0
    link_mbit: float = 0.0
    latency_ms: float = 0.0
    idle_mb: float = 0.0


class RunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run file."""

    federation: FederationConfig
    model: ModelConfig
    method: MethodConfig
    data: DataConfig
    cohort: CohortConfig
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    aggregation: AggregationConfig = AggregationConfig()
    task: TaskConfig = TaskConfig()
    server_optimizer: ServerOptimizerConfig = ServerOptimizerConfig()
    personal: PersonalConfig = PersonalConfig()
    clusters: ClustersConfig = ClustersConfig()
    defences: DefencesConfig = DefencesConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    updates: UpdatesConfig = UpdatesConfig()
    planner: PlannerConfig = PlannerConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    broker: BrokerConfig = BrokerConfig()
    store: StoreConfig = StoreConfig()
    simulation: SimulationConfig = SimulationConfig()
    tracking: TrackingConfig = TrackingConfig()

    def data_path(self) -> Path | None:
        """Folder of the data source, or None when it needs none."""
        return Path(self.data.path) if self.data.path else None
