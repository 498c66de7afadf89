"""What is to be installed on a host: which device it becomes, where its files are, how its agent is started.

Everything here goes into shell lines (:mod:`coordinator.fleet.commands`), so everything is checked when it is made.
Below the folder, which is the host's ``~/.apportion/<device>`` unless another is given::

    installation     the device's id and the folders that were made for it: by this `remove` knows what is ours
    wheels/          the packages it was made from
    environment      -> environments/<release>-<n>, the Python environment in use
    identity/        device.key (never leaves the host), device.csr, device.pem, ca.pem, signing.pub
    store/           artifacts, weights and finished work
    start-agent      the agent's command line
    run-agent        starts it again when it ends, where no systemd does
    agent.log        its log there
"""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import dataclass
from urllib.parse import urlsplit

from edge.contracts.errors import ConfigError, MessageRejected
from edge.contracts.topics import check_name
from edge.runtimes import DEFAULT, INSTALLABLE
from edge.transport.broker_address import parse_broker

_FOLDER = re.compile(r"/?[A-Za-z0-9._+-]+(?:/[A-Za-z0-9._+-]+)*")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_OURS = frozenset(
    {"--broker", "--user", "--federation", "--device", "--data", "--store", "--budget-mb", "--threads", "--ca"}
    | {"--cert", "--key", "--trust", "--runtime", "--trainer-python", "--parent-pid", "--once"}
)


@dataclass(frozen=True, kw_only=True)
class Installation:
    """One device on one host.

    Attributes:
        broker_url: ``mqtts://host[:port]``, as the device reaches it.
        data: the agent's ``--data`` on the host: a path, absolute or from the home folder (``~/images`` is the same as
            ``images``), or ``package.module:function``. It is never touched, nor need it be there yet.
        folder: absolute or from the home folder; default ``.apportion/<device>``.
        budget_mb: memory for both processes together, 1 MB = 2^20 bytes; 0 = no limit.
        threads: most threads a step may use; 0 = as ordered.
        extra_flags: further flags of ``apportion agent``, a word each: ``("--max-temperature-c", "70")``.

    Raises:
        ConfigError: everything that cannot be used, at once.
    """

    device: str
    federation: str
    broker_url: str
    data: str
    folder: str = ""
    runtime: str = DEFAULT
    budget_mb: float = 0.0
    threads: int = 0
    extra_flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems = []
        for what, name in (("device", self.device), ("federation", self.federation)):
            try:
                check_name(name, what=f"{what}:")
            except MessageRejected as error:
                problems.append(str(error))
        if not self.folder:
            object.__setattr__(self, "folder", f".apportion/{self.device}")
        problems += self._wrong_folder() + self._wrong_broker() + self._wrong_data() + self._wrong_flags()
        if self.runtime not in INSTALLABLE:
            problems.append(f"runtime: {self.runtime!r} is not one of {', '.join(INSTALLABLE)}")
        for what, value in (("budget-mb", self.budget_mb), ("threads", self.threads)):
            if not 0 <= value < 1e9:
                problems.append(f"{what}: {value} is not between 0 (no limit) and 1e9")
        if problems:
            raise ConfigError(problems, hint="apportion device add --help")

    @property
    def service(self) -> str:
        """Name of its service on the host."""
        return f"apportion-{self.device}"

    @property
    def data_word(self) -> str:
        """``data`` as one word of a shell line, in which only the home folder is left to the shell."""
        return shlex.quote(self.data) if _FUNCTION.fullmatch(self.data) else home_path(self.data)

    def agent_line(self) -> str:
        """The agent's command line after the interpreter, for a shell in the folder."""
        words = ["-m", "edge", "agent", "--broker", self.broker_url, "--federation", self.federation]
        words += ["--device", self.device, "--store", "store", "--runtime", self.runtime]
        words += ["--ca", "identity/ca.pem", "--cert", "identity/device.pem", "--key", "identity/device.key"]
        words += ["--trust", "identity/signing.pub"]
        if self.budget_mb:
            words += ["--budget-mb", f"{self.budget_mb:g}"]
        if self.threads:
            words += ["--threads", str(self.threads)]
        return f"{shlex.join(words)} --data {self.data_word}" + "".join(
            f" {shlex.quote(flag)}" for flag in self.extra_flags
        )

    def _wrong_folder(self) -> list[str]:
        parts = self.folder.split("/")
        if not _FOLDER.fullmatch(self.folder) or {".", ".."} & set(parts) or parts[0].startswith("-"):
            return [
                f"folder: {self.folder[:80]!r} is not usable: letters, digits, '.', '_', '+' and '-', parted by '/', "
                "absolute or from the home folder"
            ]
        return []

    def _wrong_broker(self) -> list[str]:
        try:
            parse_broker(self.broker_url)
        except ConfigError as error:
            return list(error.problems)
        parts = urlsplit(self.broker_url)
        if parts.scheme != "mqtts" or parts.username or parts.password or not self.broker_url.isprintable():
            return [f"broker: {parts.hostname!r} must be given as mqtts://host[:port]: devices have certificates"]
        return []

    def _wrong_data(self) -> list[str]:
        if not self.data or not self.data.isprintable():
            return [f"data: {self.data[:80]!r} is not a path or package.module:function"]
        inner = posixpath.normpath(_from_home(self.data))
        if inner == self.folder or inner.startswith(f"{self.folder}/"):
            return [f"data: {self.data} is inside {self.folder}, which goes when the device is removed; move it out"]
        return []

    def _wrong_flags(self) -> list[str]:
        found = [f"flags: {flag[:80]!r} cannot be given" for flag in self.extra_flags if not flag.isprintable()]
        names = (flag.partition("=")[0] for flag in self.extra_flags)
        return found + [f"flags: {name} is set by the installation itself" for name in names if name in _OURS]


def home_path(path: str) -> str:
    """``path``, absolute or from the home folder, as one word of a shell line."""
    below = _from_home(path)
    return shlex.quote(below) if below.startswith("/") else f'"$HOME"/{shlex.quote(below)}'


def _from_home(path: str) -> str:
    return path.removeprefix("~/")
