"""``apportion predict DIR``: what a deployed model says of examples of this device. Needs no torch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from edge.commands.outcome import run_verb
from edge.contracts.errors import ConfigError, DataError

_MOST_SHOWN = 20


def predict_command(arguments: list[str]) -> int:
    """Run the verb; the exit status: 0, 1 when the model or the data is bad, 2 for bad arguments."""
    parser = argparse.ArgumentParser(
        prog="apportion predict",
        description="The classes that a deployed model gives examples of this device. Nothing is sent anywhere.",
        epilog="Example: apportion predict model --data images --json",
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="DIR", type=Path, nargs="?", help="folder that apportion deploy wrote")
    parser.add_argument("--store", type=Path, help="the agent's store, in place of DIR: the model that was sent to it")
    parser.add_argument("--data", required=True, help="examples as a device has them, or an .npz with x alone")
    parser.add_argument("--threads", type=int, default=1, help="threads of the runtime")
    return run_verb(parser, arguments, _predict, _tell)


def _predict(chosen: argparse.Namespace) -> dict[str, Any]:
    import numpy as np

    from edge.inference.predictor import Predictor
    from edge.inference.release import predictor_of
    from edge.training.batches import decoded
    from edge.training.local_data import read_local_data
    from edge.training.records import Y, entry, names_of

    if not 1 <= chosen.threads <= 1024:
        raise ConfigError([f"--threads: {chosen.threads} is outside 1 to 1024"])
    if (chosen.folder is None) == (chosen.store is None):
        raise ConfigError(["DIR: give a folder that apportion deploy wrote, or --store of an agent: one of both"])
    if chosen.store is not None:
        predictor = predictor_of(chosen.store, threads=chosen.threads)
    else:
        predictor = Predictor(chosen.folder, threads=chosen.threads)
    unlabelled = _inputs_alone(Path(chosen.data))
    if unlabelled is not None:
        x, labels = unlabelled, None
    else:
        data = read_local_data(chosen.data)
        x, labels = decoded(data, predictor.manifest.input), entry(data.y, Y) if Y in names_of(data.y) else None
    if predictor.manifest.task:
        found = predictor.predict(x)
        return {"examples": len(found), "task": predictor.manifest.task, "predictions": found.tolist()}
    shares = predictor.probabilities(x)
    if shares.ndim != 2:
        raise DataError(
            f"{chosen.folder or chosen.store}: the model gives classes for each place of an example; use it from Python"
        )
    best = shares.argmax(1)
    names = np.asarray(predictor.classes)[best]
    values: dict[str, Any] = {
        "examples": len(names),
        "predictions": names.tolist(),
        "probabilities": np.round(shares[np.arange(len(best)), best], 6).tolist(),
        "accuracy": None,
    }
    if labels is not None:
        right = names == labels if labels.dtype.kind in "US" else best == labels.reshape(len(best), -1)[:, 0]
        values["accuracy"] = float(np.mean(right))
    return values


def _inputs_alone(path: Path) -> Any:
    """``x`` of an npz file that has no ``y``; None for any other data."""
    import zipfile

    import numpy as np

    if path.suffix != ".npz" or not path.is_file():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return archive["x"] if "x" in archive and "y" not in archive else None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read ({error}); replace the file") from error


def _tell(values: dict[str, Any]) -> None:
    if "task" in values:
        for number, found in enumerate(values["predictions"][:_MOST_SHOWN]):
            print(f"{number:6}  {_short(found)}")
        return
    rows = list(zip(values["predictions"], values["probabilities"], strict=True))
    for number, (name, share) in enumerate(rows[:_MOST_SHOWN]):
        print(f"{number:6}  {name}  {share:.3f}")
    if len(rows) > _MOST_SHOWN:
        print(f"and {len(rows) - _MOST_SHOWN} more; --json gives all")
    if values["accuracy"] is not None:
        print(f"accuracy {values['accuracy']:.4f} on {values['examples']} examples with labels")


def _short(found: Any) -> str:
    """A prediction on one line: a number, or the first of several."""
    if not isinstance(found, list):
        return f"{found:.6g}"
    shown = ", ".join(_short(value) for value in found[:4])
    return f"[{shown}{', ...' if len(found) > 4 else ''}]"
