from apportion.federation import Federation as Federation
from apportion.history import History as History
from apportion.history import load as load
from apportion.jobs import bench as bench
from apportion.jobs import deploy as deploy
from apportion.jobs import doctor as doctor
from apportion.jobs import export as export
from apportion.jobs import method_class as method_class
from apportion.jobs import methods as methods
from apportion.jobs import models as models
from apportion.jobs import plan as plan
from apportion.jobs import resume as resume
from apportion.jobs import run as run
from apportion.jobs import simulate as simulate
from apportion.rows import Rows as Rows
from apportion.run_tables import Data as Data
from apportion.run_tables import Method as Method
from apportion.run_tables import Task as Task
from coordinator.config.cohort import LocalGroup as LocalDevices
from coordinator.config.training import TrainingConfig as Train
from coordinator.data.datasets import Dataset as Dataset
from edge.contracts.errors import ApportionError as ApportionError
from edge.contracts.errors import ConfigError as ConfigError
from edge.contracts.inference import InferenceManifest as InferenceManifest
from edge.inference.predictor import Predictor as Predictor
from edge.inference.release import predictor_of as predictor_of
from export.training_step import BatchTensor as BatchTensor

NAMES: dict[str, str]

__all__ = [
    "ApportionError",
    "BatchTensor",
    "ConfigError",
    "Data",
    "Dataset",
    "Federation",
    "History",
    "InferenceManifest",
    "LocalDevices",
    "Method",
    "Predictor",
    "Rows",
    "Task",
    "Train",
    "bench",
    "deploy",
    "doctor",
    "export",
    "load",
    "method_class",
    "methods",
    "models",
    "plan",
    "predictor_of",
    "resume",
    "run",
    "simulate",
]
