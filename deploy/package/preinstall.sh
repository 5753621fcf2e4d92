#!/bin/sh
# Makes the user that sluice.service runs as.
set -e
if ! getent passwd sluice >/dev/null; then
  useradd --system --user-group --home-dir /var/lib/sluice --no-create-home --shell /usr/sbin/nologin sluice
fi
