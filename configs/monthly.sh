#!/usr/bin/env bash
# Feed in what came this month, for cron or SLURM: configs/monthly.sh DIR
#
# DIR holds nodes.parquet (the key, the label and other columns), x.npy (a row of features a node) and edges.csv (src, dst by key).
# Killed at any moment, the same command goes on: every step finds out by itself whether it is done. See docs/growing.md.
set -euo pipefail

came=$1
: "${CONFIG:=configs/monthly.yaml}" "${STORE:=monthly.ecgl}" "${MODEL:=model}" "${KEY:=id}" "${PREDICTIONS:=predictions.parquet}" "${REPORT:=report.html}"
nodes=("$came/edges.csv" "$STORE" --features "$came/x.npy" --columns "$came/nodes.parquet" --id-column "$KEY" --id)

if [ ! -e "$STORE" ]; then
  ecgl ingest edges "${nodes[@]}" --symmetrise
else
  # Done before, it finds every key and every edge again, and adds none.
  ecgl append edges "${nodes[@]}" --on-existing skip
fi

if ! compgen -G "$MODEL/sealed.json" >/dev/null && ! compgen -G "$MODEL/versions/*/sealed.json" >/dev/null; then
  ecgl run "$CONFIG" --set "store=$STORE" --out "$MODEL" --resume
else
  # At once, with last month's weights: the rows that have changed.
  if [ -e "$PREDICTIONS" ]; then
    ecgl infer "$MODEL" "$STORE" --out "$PREDICTIONS" --update "$PREDICTIONS" --id || { code=$?; [ $code -eq 3 ] || exit $code; }
  fi
  ecgl update "$MODEL" "$STORE" --out "$MODEL" --if-new --resume
fi

# New weights change every row; where nothing was learned since the table was written, only what changed is computed.
# A table of a store that was compacted since (exit 3) is written anew.
known=()
if [ -e "$PREDICTIONS" ]; then known=(--update "$PREDICTIONS"); fi
ecgl infer "$MODEL" "$STORE" --out "$PREDICTIONS" "${known[@]}" --id || {
  code=$?
  [ $code -eq 3 ] || exit $code  # 75 was stopped: whoever started this goes on by the same command
  ecgl infer "$MODEL" "$STORE" --out "$PREDICTIONS" --id
}
ecgl report "$MODEL" --html "$REPORT"
