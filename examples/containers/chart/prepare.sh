#!/bin/sh
# Once, before the first run: authority, certificates, Mosquitto's files, the first device's key, and data to try it on.
# What is there stays as it is. It ends when all of it is there.
set -eu
cd /srv
federation=${FEDERATION:-digits}
device=${DEVICE:-device-1}

test -e identity/ca.pem || apportion ca init identity
# Names by which devices reach broker and coordinator; NAMES adds those outside of this network.
set --
for name in mosquitto coordinator localhost ${NAMES:-}; do set -- "$@" --name "$name"; done
test -e identity/server/mosquitto.pem || apportion ca issue-server "$@"
test -e "identity/coordinator/$federation.pem" || apportion ca issue-coordinator "$federation"
apportion ca mosquitto --out broker --at /srv/broker

if [ ! -e device/device.pem ]; then
  apportion csr --device "$device" --out device
  apportion ca sign device/device.csr --device "$device"
  cp identity/ca.pem identity/signing.pub device/
  cp "identity/devices/$device.pem" device/device.pem
fi
test -e data/test || apportion data make digits data --devices 1
