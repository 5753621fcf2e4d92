#!/bin/sh
# Not before an upgrade: dpkg passes upgrade, rpm 1.
set -e
case "$1" in remove | 0)
  if [ -d /run/systemd/system ]; then
    systemctl disable --now sluice.service || true
  fi
  ;;
esac
