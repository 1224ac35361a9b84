#!/bin/bash
# ecgl slurm configs/demo.yaml --system shell
#
# For a machine without a batch system:  nohup bash FILE > demo.log 2>&1 &
# Memory that it needs: the plan's peak of 651 MiB and a third, in whole GiB.
# Stopped by `kill` it leaves with 75; started again it goes on.

set -u  # but not -e: the exit code of the run decides what comes next

# What has to be loaded before `ecgl` can be called, on every node:
# source .venv/bin/activate

run=runs/demo
before=$(cksum "$run/state.json" 2> /dev/null)

# --resume is always safe: where nothing was begun, the run begins.
ecgl run configs/demo.yaml --out "$run" --resume &
driver=$!
trap 'kill -TERM "$driver" 2> /dev/null' TERM INT HUP USR2
wait "$driver"
code=$?
while kill -0 "$driver" 2> /dev/null; do  # a signal has ended the waiting, not the run
  wait "$driver"
  code=$?
done

# 75 says that the run was stopped and can go on. Where something in between has lost the code (torchrun, a container),
# state.json says so; it must have changed, or a job that gets nowhere would come back for ever.
was_stopped() {
  grep -q '"stopped": "[^"]' "$run/state.json" 2> /dev/null && [ "$(cksum "$run/state.json")" != "$before" ]
}
case $code in
  75) ;;
  2 | 3 | 4 | 5 | 70) exit "$code" ;;  # would be the same again; docs/batch-jobs.md says what to do about each
  *) was_stopped || exit "$code" ;;
esac

echo "the run was stopped and can go on: start this script again" >&2
exit 75
