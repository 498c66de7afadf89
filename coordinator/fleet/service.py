"""The agent as a service of its host, as shell text: a systemd user unit, or a script that starts it again.

Where the user's services are run by systemd, a unit. Elsewhere (containers, emulation, Termux and what is beside it)
``run-agent`` keeps the agent running, and ``@reboot`` of cron or Termux:Boot, where there is one, starts that.
"""

from __future__ import annotations

import shlex

from coordinator.fleet.commands import (
    CHANGED,
    ENSURE,
    opening,
    remove_folder,
    start_agent_script,
    write_file,
    write_text,
)
from coordinator.fleet.facts import HostFacts
from coordinator.fleet.installation import Installation, home_path

START_S = 2
"""How long an agent must have run to count as started; what it refuses in its arguments it says within a second."""

_STARTED_FROM = "environment/release start-agent run-agent identity/device.pem identity/ca.pem identity/signing.pub"

MAX_LOG_BYTES = 1_000_000
RESTART_S = 10

SESSION = """\
if [ -z "${XDG_RUNTIME_DIR:-}" ] && [ -d "/run/user/$(id -u)" ]; then export XDG_RUNTIME_DIR="/run/user/$(id -u)"; fi
"""
"""Finds the service manager of a user who has not logged in on a screen."""

_BOOT = """\
if [ -d /data/data/com.termux/files/home ]; then
  boot=/data/data/com.termux/files/home/.termux/boot/@SERVICE@
  line="exec sh \\"$folder/run-agent\\" start"
  if ! [ "$HOME" = /data/data/com.termux/files/home ]; then
    # Beside Android under proot, whose programs end with the command that was started in it.
    system=$(. /etc/os-release; echo "$ID")
    line="exec proot-distro login $system --user $(id -un) -- sh \\"$folder/run-agent\\" keep @DEVICE@"
  fi
  ensure "$(dirname "$boot")"
  printf '%s\\n' "#!/data/data/com.termux/files/usr/bin/sh" termux-wake-lock "$line" > "$boot.new"
  if [ -f "$boot" ] && [ "$(cat "$boot")" = "$(cat "$boot.new")" ]; then
    rm "$boot.new"
  else
    chmod 700 "$boot.new"
    mv -f "$boot.new" "$boot"
    echo @CHANGED@
    echo "note install the app Termux:Boot and open it once, so that the agent starts with the phone"
  fi
elif command -v crontab >/dev/null 2>&1; then
  line="@reboot /bin/sh $folder/run-agent start # @SERVICE@;"
  if ! crontab -l 2>/dev/null | grep -q -F -x "$line"; then
    { crontab -l 2>/dev/null | grep -v -F "# @SERVICE@;" || true; echo "$line"; } | crontab -
    echo @CHANGED@
  fi
else
  echo "note no systemd and no cron here: after a restart of the host run: sh $folder/run-agent start"
fi
"""

_RUN_AGENT = """\
#!/bin/sh
# Keeps the agent of @DEVICE@ running where no systemd does:  run-agent start | stop | status
cd @FOLDER@ || exit 1
is_alive() {
  [ -f agent.pid ] && read -r pid < agent.pid && kill -0 "$pid" 2>/dev/null || return 1
  # After a restart of the host the number may be another program's.
  tr '\\000' ' ' < "/proc/$pid/cmdline" 2>/dev/null | grep -q -F "run-agent keep @DEVICE@"
}
nap_briefly() {
  tries=$((tries + 1))
  sleep 0.2 2>/dev/null || sleep 1
}
trim_log() {
  trap 'kill "$nap" 2>/dev/null; exit 0' TERM
  while :; do
    sleep 60 & nap=$!
    wait "$nap"
    if [ "$(wc -c < agent.log)" -gt @MAX_LOG@ ]; then cp agent.log agent.log.1; : > agent.log; fi
  done
}
keep() {
  echo $$ > agent.pid
  ending=; agent=; nap=
  trap 'ending=1; kill $agent $nap 2>/dev/null' TERM INT HUP
  trim_log >/dev/null 2>&1 & trimmer=$!
  while [ -z "$ending" ]; do
    rm -f last-status
    sh ./start-agent >> agent.log 2>&1 </dev/null & agent=$!
    wait "$agent"; status=$?
    if [ -n "$ending" ]; then wait "$agent" 2>/dev/null; break; fi
    agent=
    echo "$status" > last-status
    sleep @RESTART@ & nap=$!
    wait "$nap"
  done
  kill "$trimmer" 2>/dev/null
  rm -f agent.pid
}
case "${1:-}" in
  keep) keep ;;
  status) is_alive ;;
  start)
    is_alive && exit 0
    rm -f agent.pid last-status
    if command -v setsid >/dev/null 2>&1; then
      setsid sh ./run-agent keep @DEVICE@ >/dev/null 2>&1 </dev/null &
    else
      nohup sh ./run-agent keep @DEVICE@ >/dev/null 2>&1 </dev/null &
    fi
    tries=0
    until is_alive; do
      [ "$tries" -lt 100 ] || exit 1
      nap_briefly
    done ;;
  stop)
    is_alive || exit 0
    kill "$pid"
    tries=0
    while is_alive; do
      [ "$tries" -lt 75 ] || break
      nap_briefly
    done
    is_alive || exit 0
    kill -9 -"$pid" "$pid" 2>/dev/null
    rm -f agent.pid ;;
  *) echo "run-agent start | stop | status" >&2; exit 2 ;;
esac
"""


def service_kind(facts: HostFacts) -> str:
    """``systemd`` or ``script``."""
    return "systemd" if facts.init == "systemd" else "script"


def run_agent_script(installation: Installation) -> str:
    """The text of ``run-agent``."""
    return _filled(_RUN_AGENT, installation)


def unit_text(installation: Installation) -> str:
    """The systemd user unit."""
    place = installation.folder if installation.folder.startswith("/") else f"%h/{installation.folder}"
    return f"""\
[Unit]
Description=Apportion agent {installation.device}
StartLimitIntervalSec=0

[Service]
ExecStart=/bin/sh {place}/start-agent
Restart=always
RestartSec={RESTART_S}
TimeoutStopSec=20
OOMPolicy=continue

[Install]
WantedBy=default.target
"""


def install_service(installation: Installation, kind: str) -> str:
    """Writes ``start-agent`` and the service, to be started with the host; ``note ...`` lines are for the owner."""
    text = write_text(installation, "start-agent", start_agent_script(installation), mode="700") + ENSURE
    if kind == "systemd":
        unit = f"{installation.service}.service"
        text += (
            SESSION
            + 'units="$HOME/.config/systemd/user"\nensure "$units/default.target.wants"\n'
            + write_file(f'"$units"/{unit}', unit_text(installation), mode="644")
            + f"""\
systemctl --user daemon-reload
systemctl --user is-enabled --quiet {unit} || {{ systemctl --user --quiet enable {unit}; echo {CHANGED}; }}
if ! [ -e "/var/lib/systemd/linger/$(id -un)" ]; then
  if loginctl enable-linger 2>/dev/null; then
    : > "$folder/linger"
  else
    echo "note the agent ends when you log out there, until: sudo loginctl enable-linger $(id -un)"
  fi
fi
"""
        )
    else:
        text += write_file('"$folder/run-agent"', run_agent_script(installation), mode="700")
        text += _filled(_BOOT, installation)
    return text + """printf '%s' "$made" >> "$folder/installation"\n"""


def start_service(installation: Installation, kind: str, *, restart: bool) -> str:
    """Starts the agent; prints ``changed`` when it did, and ``alive`` if it stays so.

    One that runs is started again if ``restart``, and when what it was started from has changed since: also where the
    connection was lost between the two. Of one that ends it prints ``ended`` with its exit status.
    """
    unit = f"{installation.service}.service"
    if kind == "systemd":
        stop, start = f"systemctl --user stop {unit}", f"systemctl --user start {unit}"
        is_alive, is_quiet = f"systemctl --user is-active --quiet {unit}", "true"
        ended = f"systemctl --user show --property ExecMainStatus --value {unit}"
    else:
        stop, start = "sh ./run-agent stop", "sh ./run-agent start"
        is_alive, is_quiet = "sh ./run-agent status", "! [ -s last-status ]"
        ended = "cat last-status 2>/dev/null"
    return (
        opening(installation)
        + (SESSION if kind == "systemd" else "")
        + f"""\
cd "$folder"
is_started() {{ {"false" if restart else f'[ "$(cat started 2>/dev/null)" = "$wanted" ] && {is_alive}'}; }}
wanted=$(cat {_STARTED_FROM} 2>/dev/null | sha256sum)
if ! is_started; then
  {stop}
  {start}
  echo "$wanted" > started
  echo {CHANGED}
  sleep {START_S}
fi
if {is_alive} && {is_quiet}; then echo alive; else echo "ended $({ended})"; fi
"""
    )


def stop_service(installation: Installation) -> str:
    """Stops the agent of either kind of service; harmless when there is none."""
    unit = f"{installation.service}.service"
    return (
        opening(installation)
        + SESSION
        + f"""\
if [ -f "$HOME/.config/systemd/user/{unit}" ]; then systemctl --user stop {unit} || true; fi
if [ -f "$folder/run-agent" ]; then sh "$folder/run-agent" stop || true; fi
"""
    )


def remove_all(installation: Installation) -> str:
    """Stops the agent and removes service and folder; prints ``removed <what>`` for each that was there."""
    unit, mark = f"{installation.service}.service", shlex.quote(f"# {installation.service};")
    return (
        stop_service(installation)
        + f"""\
units="$HOME/.config/systemd/user"
if [ -f "$units/{unit}" ]; then
  systemctl --user --quiet disable {unit} || true
  rm -f "$units/{unit}" "$units/default.target.wants/{unit}"
  systemctl --user daemon-reload || true
  echo removed service
fi
if [ -f "$folder/linger" ] && ! ls "$units"/apportion-*.service >/dev/null 2>&1; then
  loginctl disable-linger 2>/dev/null || true
fi
boot=/data/data/com.termux/files/home/.termux/boot/{installation.service}
if [ -f "$boot" ]; then rm -f "$boot"; echo removed boot script; fi
if command -v crontab >/dev/null 2>&1 && crontab -l 2>/dev/null | grep -q -F {mark}; then
  crontab -l | {{ grep -v -F {mark} || true; }} | crontab -
  echo removed crontab line
fi
if [ -f "$folder/run-agent" ]; then echo removed service; fi
"""
        + remove_folder(installation)
    )


def show_log(installation: Installation, lines: int) -> str:
    """Prints the last ``lines`` of the agent's log."""
    unit = f"{installation.service}.service"
    return (
        opening(installation)
        + SESSION
        + f"""\
if [ -f "$folder/agent.log" ]; then
  tail -n {lines:d} "$folder/agent.log"
else
  told=$(journalctl --user --unit {unit} --quiet --no-pager --output cat --lines {lines:d} 2>/dev/null || true)
  if [ -z "$told" ]; then
    told=$(journalctl _SYSTEMD_USER_UNIT={unit} --quiet --no-pager --output cat --lines {lines:d} 2>/dev/null || true)
  fi
  printf '%s\\n' "$told"
fi
"""
    )


def _filled(text: str, installation: Installation) -> str:
    values = {
        "@SERVICE@": installation.service,
        "@DEVICE@": installation.device,
        "@FOLDER@": home_path(installation.folder),
        "@MAX_LOG@": str(MAX_LOG_BYTES),
        "@RESTART@": str(RESTART_S),
        "@CHANGED@": CHANGED,
    }
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text
