#!/bin/bash
# User data of a spot instance that works on one run and powers off when it is finished.
#
# For an image with Python 3.11 and the NVIDIA driver. Launch with IMDSv2, an instance profile
# that may read the wheel, the parameter and the result store, and
# `--instance-initiated-shutdown-behavior terminate`. Nothing here reacts to a notice: the
# worker does, and an instance that is stopped by its owner is charged where one that is
# interrupted in its first hour is not.
set -euo pipefail

WHEEL=s3://example-bucket/batchq/batchq-0.1.0-py3-none-any.whl
CONSTRAINTS=s3://example-bucket/batchq/constraints.txt
RESULTS=s3://example-bucket/results
LEDGER_PARAMETER=/batchq/ledger

useradd --system --user-group batchq
install -d -m 755 /opt/batchq /etc/batchq
download=$(mktemp -d)
aws s3 cp --only-show-errors "$WHEEL" "$download/"
aws s3 cp --only-show-errors "$CONSTRAINTS" "$download/"
python3.11 -m venv /opt/batchq
/opt/batchq/bin/pip install --quiet --constraint "$download/constraints.txt" \
    "$download/${WHEEL##*/}[inference,aws]"

# The password reaches neither a command line nor this script's log.
(
    umask 077
    {
        printf 'BATCHQ_RESULTS=%s\n' "$RESULTS"
        printf 'BATCHQ_LEDGER='
        aws ssm get-parameter --with-decryption --name "$LEDGER_PARAMETER" \
            --query Parameter.Value --output text
    } >/etc/batchq/worker.env
)

# The same unit as configs/systemd/batchq-worker.service.
cat >/etc/systemd/system/batchq-worker.service <<'UNIT'
# A worker that systemd keeps running until its run is finished.
#
# Install batchq into /opt/batchq, make a user batchq, and put the settings (BATCHQ_LEDGER,
# BATCHQ_RESULTS, …) into /etc/batchq/worker.env, readable by root alone.

[Unit]
Description=batchq worker
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
User=batchq
StateDirectory=batchq
WorkingDirectory=/var/lib/batchq
EnvironmentFile=/etc/batchq/worker.env
ExecStart=/opt/batchq/bin/batchq worker

# 0 and 3: the run is finished. 75: stopped in order, work remains. 76: device or stall.
# 11: the ledger did not answer. Every other code needs a person, and no restart helps.
SuccessExitStatus=3 75
Restart=on-abnormal
RestartForceExitStatus=11 75 76
# Longer than a moment: a spot notice that is still standing ends the next worker as well.
RestartSec=30s

# SIGTERM goes to the worker alone, which ends its own children; SIGKILL to what is left.
KillSignal=SIGTERM
KillMode=mixed
TimeoutStopSec=60s
# What the worker plans with, less than TimeoutStopSec.
Environment=BATCHQ_NOTICE_WINDOW=50s

NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes

[Install]
WantedBy=multi-user.target
UNIT

# Power off when the run is finished, and only then: 75 is a notice, and work remains.
install -d /etc/systemd/system/batchq-worker.service.d
cat >/etc/systemd/system/batchq-worker.service.d/finished.conf <<'DROPIN'
[Service]
ExecStopPost=+/bin/sh -c 'case "$$EXIT_STATUS" in 0|3) systemctl poweroff --no-block;; esac'
DROPIN

systemctl daemon-reload
systemctl enable --now batchq-worker.service
