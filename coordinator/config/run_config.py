"""The run file: what ``apportion run CONFIG`` reads, as frozen structs, every problem in it reported at once.

This page is the reference of its keys (TOML: kebab-case, one table per class). What the values do is told where they
are used; how tables are read and problems gathered is :mod:`coordinator.config.table_reader`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from coordinator.config.aggregation import BUFFERED_KEYS, AggregationConfig, DefencesConfig, UpdatesConfig
from coordinator.config.clusters import ClustersConfig
from coordinator.config.cohort import CohortConfig, LocalGroup, PlannerConfig, RuntimeConfig
from coordinator.config.parameter_groups import ParameterGroupConfig
from coordinator.config.personal import PersonalConfig
from coordinator.config.privacy import PrivacyConfig
from coordinator.config.server_optimizer import ServerOptimizerConfig
from coordinator.config.task import TaskConfig
from coordinator.config.tracking import OWN_KEYS, TrackingConfig
from edge.contracts.plan import LastBatch


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


class TrainingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[training]``: what a device does in one round.

    Attributes:
        epochs: passes over a device's examples in one round; 1 when neither this nor ``steps`` is given. Example:
            ``3``.
        steps: training steps in one round, in place of ``epochs``. Example: ``20``.
        batch: examples in one training step. Example: ``32``.
        last_batch: what becomes of the examples left over at an epoch's end: ``drop`` leaves them out, ``keep`` trains
            a smaller batch, ``wrap`` fills the batch up from the epoch's beginning. Example: ``"wrap"``.
        optimizer: what the device's steps are made with. Example: ``"adamw"``.
        lr: learning rate of the device's optimizer, at the start. Example: ``0.05``.
        lr_schedule: how the learning rate changes over the rounds: ``constant``; ``cosine`` from ``lr`` to
            ``lr_final``; ``steps``, times ``lr_factor`` at each round of ``lr_milestones``; ``exponential``, halved
            every ``lr_half_life`` rounds. Example: ``"cosine"``.
        lr_final: learning rate at the end of ``cosine``. Example: ``0.001``.
        lr_milestones: rounds at which ``steps`` changes the rate. Example: ``[50, 75]``.
        lr_factor: what ``steps`` multiplies the rate with at each of them. Example: ``0.1``.
        lr_half_life: rounds after which ``exponential`` has halved the rate. Example: ``100``.
        lr_warm_up: first rounds, W, of a rising rate: round r, from 0, has (r + 1) / (W + 1) of what the schedule says.
            Example: ``3``.
        momentum: momentum of ``sgd``. Example: ``0.9``.
        nesterov: Nesterov's form of that momentum. Example: ``true``.
        weight_decay: this times the weights is added to the gradient (``sgd``, ``adam``) or taken off the weights
            (``adamw``, times ``lr``). Example: ``0.0005``.
        clip_norm: largest gradient norm; 0 = no clipping. Example: ``1.0``.
        frobenius_lambda: weight of Frobenius decay on factor pairs, for methods that have them. Example: ``0.0001``.
        proximal_mu: mu of FedProx: every step is also pulled back to the received weights; 0 = not. Example: ``0.01``.
        scaffold: control variates correct every step for how a device's data differ from all devices' (SCAFFOLD).
            Example: ``true``.
        loss: what a step lowers where there is no ``[task]``. Example: ``"cross_entropy"``.
        frozen_norm: what a batch norm whose parameters are frozen normalises with: the statistics of each ``batch``, or
            the ``static`` ones it has learned. Example: ``"static"``.
        cached_features: where a cut freezes the lowest layers, devices run these once per example and keep what they
            give on disk, in this type: ``float32`` (nothing is lost), ``float16``, half the bytes, or
            ``int8``, a quarter; empty = not. Example: ``"float32"``.
        groups: ``[[training.groups]]``, parameters with a learning rate or a weight decay of their own. Example: ``[{
            match = "head.*", lr-factor = 10.0 }]``.
    """

    epochs: int = 1
    steps: int = 0
    batch: int = 32
    last_batch: LastBatch = "drop"
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.1
    lr_schedule: Literal["constant", "cosine", "steps", "exponential"] = "constant"
    lr_final: float = 0.0
    lr_milestones: tuple[int, ...] = ()
    lr_factor: float = 0.1
    lr_half_life: float = 10_000.0
    lr_warm_up: int = 0
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    frobenius_lambda: float = 0.0
    proximal_mu: float = 0.0
    scaffold: bool = False
    loss: str = "cross_entropy"
    frozen_norm: Literal["batch", "static"] = "batch"
    cached_features: Literal["", "float32", "float16", "int8"] = ""
    groups: tuple[ParameterGroupConfig, ...] = ()


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
        augment: named augmentations while training: ``flip``, ``crop4``. Example: ``["flip", "crop4"]``.
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


class SimulationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[simulation]``: how fast simulated devices are, and how steps compute; read by ``apportion simulate`` alone.

    Attributes:
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
        idle_mb: memory of supervisor and trainer before any step, for groups with a budget and no level. Example:
            ``71``.
    """

    precision: Precision = "float32"
    time_model: str = ""
    profile: str = "raspberry-pi-4"
    gmac_per_s: float = 0.0
    step_overhead_ms: float = 0.0
    link_mbit: float = 0.0
    latency_ms: float = 0.0
    idle_mb: float = 71.0


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


def canonical_toml(config: RunConfig) -> str:
    """The run file that reads as ``config``: every key spelled out, in the order of this page; equal for equal runs."""
    out: list[str] = []
    for name in config.__struct_fields__:
        section = getattr(config, name)
        if section in _UNASKED:
            continue
        listed = _LISTED.get(type(section), "")
        values = {key: getattr(section, key) for key in section.__struct_fields__ if key != listed}
        if name in ("method", "task"):
            values = {"name": section.name, **dict(sorted(section.options.items()))}
        if name == "runtime":
            values = {"name": values.pop("names"), **values}
        for key in _not_written(section):
            del values[key]
        out.append(f"[{_kebab(name)}]")
        # A method's own options keep their spelling; ours are kebab-case.
        out += [
            f"{key if name in ('method', 'task') else _kebab(key)} = {_toml(value)}" for key, value in values.items()
        ]
        out.append("")
        for group in getattr(section, listed) if listed else ():
            out.append(f"[[{_kebab(name)}.{listed}]]")
            keys = [key for key in group.__struct_fields__ if key not in _not_written(group)]
            out += [f"{_kebab(key)} = {_toml(getattr(group, key))}" for key in keys]
            out.append("")
    return "\n".join(out)


_UNASKED = (ServerOptimizerConfig(), PersonalConfig(), ClustersConfig(), TaskConfig(), TrackingConfig())
"""Tables that are left out where nobody asked for them: runs of earlier releases keep their text."""

_LISTED: dict[type, str] = {CohortConfig: "local", TrainingConfig: "groups"}
"""The keys that are arrays of tables."""


def _not_written(section: Any) -> list[str]:
    """Keys whose value stands for "not given", which a file says by leaving them out."""
    if isinstance(section, FederationConfig):
        unused = [] if section.keep_best else ["metric", "keep_best"]
        return unused + [key for key in ("patience", "keep_every") if not getattr(section, key)]
    if isinstance(section, ModelConfig):
        return [key for key in ("classes", "vocabulary", "weights_map") if not getattr(section, key)]
    if isinstance(section, TrainingConfig):
        unused = ["epochs" if section.steps else "steps"]
        later = ("proximal_mu", "scaffold", "lr_warm_up", "cached_features")
        unused += ["frozen_norm"] if section.frozen_norm == "batch" else []
        return unused + [key for key in later if not getattr(section, key)]
    if isinstance(section, ParameterGroupConfig):
        return ["weight_decay"] if section.weight_decay is None else []
    if isinstance(section, DataConfig):
        unused = ["alpha"] if not section.partition.startswith("dirichlet") else []
        return unused if section.devices else [*unused, "devices"]
    if isinstance(section, EvaluationConfig):
        unused = [] if section.devices else ["devices", "devices_least"]
        return unused if section.choices else [*unused, "choices"]
    if isinstance(section, PersonalConfig):
        return [key for key in ("layers", "fine_tune") if not getattr(section, key)]
    if isinstance(section, AggregationConfig):
        return [] if section.mode == "buffered" else [key.replace("-", "_") for key in BUFFERED_KEYS]
    if isinstance(section, PrivacyConfig):
        return [] if section.least_honest else ["least_honest"]
    if isinstance(section, StoreConfig):
        return [key for key in ("blobs", "ledger") if not getattr(section, key)] + ["shards"] * (section.shards == 1)
    if isinstance(section, LocalGroup):
        return [key for key in ("runtime", "tags") if not getattr(section, key)]
    if isinstance(section, CohortConfig):
        return [] if section.tags else ["tags"]
    if isinstance(section, TrackingConfig):
        # Of a tracker that is not named, and what stands for a place in the run's directory.
        unnamed = [key.replace("-", "_") for key, tracker in OWN_KEYS.items() if tracker not in section.to]
        empty = [key for key in section.__struct_fields__ if getattr(section, key) in ("", ())]
        return list(dict.fromkeys([*unnamed, *empty]))
    if isinstance(section, BrokerConfig):
        spared = ("identity", "bulk", "web", "web_certificate", "web_key", "web_socket", "folder")
        return [key for key in spared if not getattr(section, key)]
    return []


def _kebab(key: str) -> str:
    return key.replace("_", "-")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, TlsFiles):
        value = {key: getattr(value, key) for key in value.__struct_fields__}
    if isinstance(value, Mapping):
        pairs = (f"{_quoted(str(key))} = {_toml(value[key])}" for key in sorted(value))
        return "{ " + ", ".join(pairs) + " }" if value else "{}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml(entry) for entry in value) + "]"
    raise TypeError(f"no TOML form of {type(value).__name__} in a run file")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'
