"""The shell text of every step on a host: what provisioning runs over SSH or adb, and what a printed script holds.

POSIX ``sh`` and nothing is assumed beyond what :mod:`coordinator.fleet.facts` has looked for. Each text stands for
itself, may be run again, and prints ``changed`` on a line when it changed something. Where one needs the interpreter it
takes ``$python``, which :func:`use_python` or :func:`find_python` sets. The service is in
:mod:`coordinator.fleet.service`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from coordinator.fleet.facts import PYTHON_NAMES, SEARCHED
from coordinator.fleet.installation import Installation, home_path
from edge.contracts.release import PYTHON_RANGE, PYTHONS

CHANGED = "changed"

ENSURE = """\
made=
ensure() {
  [ -d "$1" ] && return
  ensure "$(dirname "$1")"
  mkdir "$1"
  made="$made$1
"
}
"""
"""Makes a folder and those above it; adds those it made to ``$made``, a line each, for ``installation``."""


def opening(installation: Installation) -> str:
    """What every text begins with: it ends at the first failure, its files are its user's alone, ``$folder`` is set."""
    return f"set -eu\numask 077\nfolder={home_path(installation.folder)}\n"


def use_python(path: str) -> str:
    """Sets ``$python`` to an interpreter that is known."""
    return f"python={shlex.quote(path)}\n"


def find_python(pythons: Sequence[tuple[int, int]] = PYTHONS) -> str:
    """Sets ``$python`` to the first usable interpreter; ends with status 1 and the reason when there is none."""
    (major, minor), *others = pythons
    wanted = PYTHON_RANGE if others else f"{major}.{minor}"
    test = (
        "import struct, ssl, sys, venv; "
        f"sys.exit(sys.version_info[:2] not in {tuple(pythons)!r} or struct.calcsize('P') != 8)"
    )
    return (
        f"{SEARCHED}\n"
        "python=\n"
        f"for name in {PYTHON_NAMES}; do\n"
        f'  if [ -z "$python" ] && "$name" -c {shlex.quote(test)} 2>/dev/null; then python=$name; fi\n'
        "done\n"
        f'if [ -z "$python" ]; then echo "Python {wanted} with venv, in 64 bits, is needed" >&2; exit 1; fi\n'
    )


def make_folder(installation: Installation) -> str:
    """The folder, with the record of what was made, by which :func:`remove_folder` knows it."""
    return (
        opening(installation)
        + ENSURE
        + f"""\
if [ ! -f "$folder/installation" ]; then
  if [ -e "$folder" ]; then echo "$folder is there and is no installation" >&2; exit 1; fi
  ensure "$folder"
  printf '%s\\n%s' {shlex.quote(installation.device)} "$made" > "$folder/installation"
  echo {CHANGED}
fi
if [ "$(sed -n 1p "$folder/installation")" != {shlex.quote(installation.device)} ]; then
  echo "$folder belongs to another device" >&2
  exit 1
fi
mkdir -p "$folder/wheels" "$folder/environments" "$folder/identity" "$folder/store"
"""
    )


def check_wheels(installation: Installation, wheels: Mapping[str, str]) -> str:
    """Prints ``missing <name>`` for every wheel that is not there whole; removes what no longer belongs there.

    Args:
        wheels: file name -> SHA-256.
    """
    lines = "\n".join(f"{digest}  {name}" for name, digest in sorted(wheels.items()))
    return (
        opening(installation)
        + f"""\
cd "$folder/wheels"
cat > .wanted <<'END'
{lines}
END
for name in *; do
  [ -f "$name" ] || continue
  grep -q -F -x "$(sha256sum "$name" | cut -d ' ' -f 1)  $name" .wanted || rm -f "$name"
done
while read -r digest name; do [ -f "$name" ] || echo "missing $name"; done < .wanted
"""
    )


def make_environment(installation: Installation, wheels: Sequence[str], release: str) -> str:
    """The Python environment from the wheels that are there, taken into use when it is whole; needs ``$python``.

    Args:
        wheels: file names, pip's own among them: it installs, and is not installed.
        release: digest of them all.
    """
    (pip,) = (name for name in wheels if name.startswith("pip-"))
    installed = " ".join(f"wheels/{shlex.quote(name)}" for name in sorted(wheels) if name != pip)
    return (
        opening(installation)
        + f"""\
cd "$folder"
used=$(readlink environment || true)
if [ "$(cat environment/release 2>/dev/null || true)" != {release} ]; then
  for old in environments/*; do [ "$old" = "$used" ] || rm -rf "$old"; done
  new=environments/{release[:12]}-$$
  if "$python" -m venv --without-pip "$new" &&
    "$new/bin/python" wheels/{shlex.quote(pip)}/pip install --quiet --no-index --no-deps --no-cache-dir --no-compile \\
      --no-warn-script-location --disable-pip-version-check --root-user-action=ignore \\
      {installed} &&
    echo {release} > "$new/release" &&
    ln -s "$new" "environment.$$" &&
    "$python" -c 'import os, sys; os.replace(*sys.argv[1:])' "environment.$$" environment
  then
    echo {CHANGED}
  else
    rm -rf "$new" "environment.$$"
    exit 1
  fi
fi
"""
    )


def drop_old_environments(installation: Installation) -> str:
    """Removes the environments that are not in use; after the agent was started from the new one."""
    return (
        opening(installation)
        + """\
cd "$folder"
used=$(readlink environment)
for old in environments/*; do [ "$old" = "$used" ] || rm -rf "$old"; done
"""
    )


def make_request(installation: Installation) -> str:
    """The device's key and certificate request, made there; the key is never read."""
    return (
        opening(installation)
        + f"""\
cd "$folder"
if [ ! -f identity/device.key ] || [ ! -f identity/device.csr ]; then
  environment/bin/python -m edge csr --device {shlex.quote(installation.device)} --out identity >/dev/null
  echo {CHANGED}
fi
"""
    )


def show_request(installation: Installation) -> str:
    """Prints the certificate request."""
    return opening(installation) + 'cat "$folder/identity/device.csr"\n'


def write_text(installation: Installation, path: str, text: str, *, mode: str = "600") -> str:
    """A text file at ``path`` below the folder, whole or not at all.

    Raises:
        ValueError: a line of ``text`` is the one that ends it in the shell's text.
    """
    return opening(installation) + write_file(f'"$folder"/{shlex.quote(path)}', text, mode=mode)


def write_file(word: str, text: str, *, mode: str = "600") -> str:
    """As :func:`write_text`, without the opening, for any place given as a word of the shell."""
    end = "END-OF-FILE"
    if end in text.splitlines():
        raise ValueError(f"a line of the text is {end}")
    return f"""\
place={word}
cat > "$place.new" <<'{end}'
{text.rstrip(chr(10))}
{end}
if [ -f "$place" ] && [ "$(cat "$place")" = "$(cat "$place.new")" ]; then
  rm "$place.new"
else
  chmod {mode} "$place.new"
  mv -f "$place.new" "$place"
  echo {CHANGED}
fi
"""


def start_agent_script(installation: Installation) -> str:
    """The text of ``start-agent``, which both kinds of service run."""
    return (
        "#!/bin/sh\n"
        f"# Starts the agent of {installation.device}; written when it was added, and again when it is changed.\n"
        f"cd {home_path(installation.folder)} || exit 1\n"
        f"exec environment/bin/python {installation.agent_line()}\n"
    )


def measure_folder(installation: Installation) -> str:
    """Prints the size of the environment in use in KiB."""
    return opening(installation) + """cd "$folder"\ndu -sk "$(readlink environment)" | cut -f 1\n"""


def probe_profile(installation: Installation) -> str:
    """Prints the device's profile as its own installation sees and has measured it, one JSON line."""
    words = f"--json --name {shlex.quote(installation.device)} --keep store"
    return opening(installation) + f'cd "$folder"\nenvironment/bin/python -m edge profile {words}\n'


def remove_folder(installation: Installation) -> str:
    """Removes the folder, if it is ours, and the folders that were made for it; prints ``removed folder``."""
    return (
        opening(installation)
        + f"""\
if [ -f "$folder/installation" ] && [ "$(sed -n 1p "$folder/installation")" = {shlex.quote(installation.device)} ]; then
  made=$(sed 1d "$folder/installation" | sort -r)
  rm -rf "$folder"
  printf '%s\\n' "$made" | while read -r place; do [ -z "$place" ] || rmdir "$place" 2>/dev/null || true; done
  echo removed folder
fi
"""
    )
