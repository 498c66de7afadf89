"""Tables, sound and text as examples: numbers by hand, and a clear reason for what does not fit together."""

from __future__ import annotations

import importlib
import wave
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edge.contracts.errors import ConfigError, DataError
from edge.training.local_data import read_local_data


def arrays(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    data = read_local_data(str(folder))
    assert isinstance(data.x, np.ndarray)
    return data.x, data.y


def write_wav(path: Path, samples: bytes, *, width: int = 2, channels: int = 1, rate: int = 8000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(samples)


def test_tables_of_a_folder_are_joined_in_name_order(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("a,label\n3,1\n")
    (tmp_path / "a.csv").write_text("a,label\n1,0\n2,0\n")
    x, y = arrays(tmp_path)
    assert (x.tolist(), y.tolist()) == ([[1.0], [2.0], [3.0]], [0, 0, 1])


def test_windows_have_a_row_per_column_and_the_label_of_most_rows(tmp_path: Path) -> None:
    (tmp_path / "data.toml").write_text('window = 3\nstride = 2\nlabel = "what"\ncolumns = ["b", "a"]\n')
    (tmp_path / "d.csv").write_text("a,what,b\n" + "".join(f"{i},{w},{i * 10}\n" for i, w in enumerate("wwrrrrw")))
    x, y = arrays(tmp_path)
    assert x.tolist() == [
        [[0, 10, 20], [0, 1, 2]],
        [[20, 30, 40], [2, 3, 4]],
        [[40, 50, 60], [4, 5, 6]],
    ]
    assert y.tolist() == ["w", "r", "r"]


def test_a_window_with_as_many_rows_of_two_labels_has_the_first(tmp_path: Path) -> None:
    (tmp_path / "data.toml").write_text("window = 2\n")
    (tmp_path / "d.csv").write_text("a,label\n1,7\n2,3\n")
    assert arrays(tmp_path)[1].tolist() == [7]


def test_no_window_spans_two_files(tmp_path: Path) -> None:
    (tmp_path / "data.toml").write_text("window = 2\n")
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("a,label\n1,0\n2,0\n3,0\n")
    assert arrays(tmp_path)[0].shape == (2, 1, 2)


def test_wav_samples_are_fractions_cut_and_filled(tmp_path: Path) -> None:
    (tmp_path / "data.toml").write_text("length = 3\n")
    write_wav(tmp_path / "no" / "a.wav", np.array([16384, -32768, 0, 5], "<i2").tobytes())
    write_wav(tmp_path / "yes" / "b.wav", bytes([0, 128, 192]), width=1)
    x, y = arrays(tmp_path)
    assert x.dtype == np.float32
    assert x.tolist() == [[0.5, -1.0, 0.0], [-1.0, 0.0, 0.5]]
    assert y.tolist() == ["no", "yes"]


def test_wav_of_24_bits_and_two_channels_is_their_mean(tmp_path: Path) -> None:
    (tmp_path / "data.toml").write_text("length = 2\n")
    half, quarter = (1 << 22).to_bytes(3, "little"), (-(1 << 21)).to_bytes(3, "little", signed=True)
    write_wav(tmp_path / "c" / "a.wav", half + quarter, width=3, channels=2)
    assert arrays(tmp_path)[0].tolist() == [[0.125, 0.0]]


def test_texts_by_class_are_bytes_with_zeros_after(tmp_path: Path) -> None:
    (tmp_path / "data.toml").write_text("length = 4\n")
    for name, text in (("bad", "ab"), ("good", "é!xyz")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.txt").write_text(text, encoding="utf-8")
    x, y = arrays(tmp_path)
    assert x.tolist() == [[97, 98, 0, 0], [195, 169, 33, 120]]
    assert y.tolist() == ["bad", "good"]


def test_texts_without_classes_give_the_byte_that_follows(tmp_path: Path) -> None:
    (tmp_path / "data.toml").write_text("length = 2\nstride = 1\n")
    (tmp_path / "t.txt").write_text("abcd")
    x, y = arrays(tmp_path)
    assert x.tolist() == [[97, 98], [98, 99]]
    assert y.tolist() == [99, 100]


def test_parquet_is_read_as_a_table(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install pyarrow")
    table = pyarrow.table({"a": [1.5, 2.0], "label": ["x", "y"], "b": [3, 4]})
    importlib.import_module("pyarrow.parquet").write_table(table, tmp_path / "d.parquet")
    x, y = arrays(tmp_path)
    assert (x.tolist(), y.tolist()) == ([[1.5, 3.0], [2.0, 4.0]], ["x", "y"])


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    (tmp_path / "d.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r"d\.parquet needs pyarrow") as caught:
        read_local_data(str(tmp_path))
    assert caught.value.hint == "pip install pyarrow"


def two_shapes(folder: Path) -> str:
    np.savez(folder / "a.npz", x=np.zeros((2, 3)), y=[0, 1])
    np.savez(folder / "b.npz", x=np.zeros((2, 4)), y=[0, 1])
    return r"b\.npz: x of an example has shape \(4,\), in .*a\.npz \(3,\)"


def two_kinds_of_labels(folder: Path) -> str:
    np.savez(folder / "a.npz", x=np.zeros((2, 3)), y=[0, 1])
    np.savez(folder / "b.npz", x=np.zeros((2, 3)), y=["cat", "dog"])
    return r"b\.npz: y is <U3, in .*a\.npz int64"


def two_widths_of_tables(folder: Path) -> str:
    (folder / "a.csv").write_text("a,label\n1,0\n")
    (folder / "b.csv").write_text("a,b,label\n1,2,0\n")
    return r"b\.csv: x of an example has shape \(2,\), in .*a\.csv \(1,\)"


def two_rates(folder: Path) -> str:
    write_wav(folder / "c" / "a.wav", bytes(4))
    write_wav(folder / "c" / "b.wav", bytes(4), rate=16_000)
    return r"b\.wav: 16000 samples a second, .*a\.wav has 8000"


def two_kinds_of_files(folder: Path) -> str:
    write_wav(folder / "c" / "a.wav", bytes(4))
    (folder / "d").mkdir()
    Image.new("RGB", (2, 2)).save(folder / "d" / "b.png")
    return r"several kinds: 1 of images .*b\.png.*1 of sound"


def no_wav(folder: Path) -> str:
    (folder / "c").mkdir()
    (folder / "c" / "bad.wav").write_bytes(b"RIFF????WAVE")
    return r"bad\.wav: is not a readable PCM WAV"


def no_column(folder: Path) -> str:
    (folder / "data.toml").write_text('columns = ["speed"]\n')
    (folder / "d.csv").write_text("a,label\n1,0\n")
    return r"d\.csv: no column \['speed'\] among \['a', 'label'\]"


def window_too_long(folder: Path) -> str:
    (folder / "data.toml").write_text("window = 9\n")
    (folder / "d.csv").write_text("a,label\n1,0\n")
    return "no file has 9 rows"


def text_too_short(folder: Path) -> str:
    (folder / "t.txt").write_text("abc")
    return "no text is longer than 256 bytes"


def unknown_key(folder: Path) -> str:
    (folder / "data.toml").write_text("windows = 9\n")
    (folder / "d.csv").write_text("a,label\n1,0\n")
    return r"data\.toml: .*windows.*its keys are label, labels, unlabelled, columns, window, stride, length"


def negative_stride(folder: Path) -> str:
    (folder / "data.toml").write_text("stride = -1\n")
    (folder / "d.csv").write_text("a,label\n1,0\n")
    return "stride = -1"


def empty_classes(folder: Path) -> str:
    (folder / "c").mkdir()
    return r"its folders \['c'\] hold no images, \.wav or \.txt"


@pytest.mark.parametrize(
    "make",
    [
        two_shapes, two_kinds_of_labels, two_widths_of_tables, two_rates, two_kinds_of_files, no_wav, no_column,
        window_too_long, text_too_short, unknown_key, negative_stride, empty_classes,
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(make: object, tmp_path: Path) -> None:
    expected = make(tmp_path)  # type: ignore[operator]
    with pytest.raises(DataError, match=expected):
        read_local_data(str(tmp_path))
