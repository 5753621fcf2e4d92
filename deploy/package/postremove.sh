#!/bin/sh
# purge deletes the jobs of the private redis-server and the configuration. The user stays, as files
# may be its own.
set -e
if [ "$1" = purge ]; then
  rm -rf /var/lib/sluice /etc/sluice
fi
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
