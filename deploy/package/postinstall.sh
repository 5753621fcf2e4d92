#!/bin/sh
# Sluice does not start by itself, because its configuration has no upstream of yours yet. After an
# upgrade it starts again if it ran.
set -e
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  systemctl try-restart sluice.service || true
fi
