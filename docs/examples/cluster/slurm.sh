#!/usr/bin/env bash
#SBATCH --job-name=tune
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=04:00:00
# Tune a kernel on the GPUs of four nodes: sbatch slurm.sh kernels/rmsnorm.cu --trials 200
# Everything after the script's name goes to `tune`. $TUNE_TLS, in the environment that sbatch passes
# on, names the cluster's file of certificate and key, readable by you alone (docs/clusters.md).
set -euo pipefail

port=${TUNE_PORT:-$((20000 + SLURM_JOB_ID % 10000))}
python=${TUNE_PYTHON:-python}
device=${TUNE_DEVICE:-auto}
session=sessions/slurm-${SLURM_JOB_ID:?is not set: start this with sbatch}
pem=${TUNE_TLS:?is not set: name the file of certificate and key}
tls=(--tls-ca "$pem" --tls-cert "$pem")
address=tls://$(hostname):$port

trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
"$python" -m distributed.cli.dask_scheduler --protocol tls --port "$port" --no-dashboard \
  --tls-ca-file "$pem" --tls-cert "$pem" --tls-key "$pem" &
pid=$!
# Workers find out by themselves when the scheduler answers no more; before that they need one.
until (exec 3<>"/dev/tcp/$(hostname)/$port") 2>/dev/null; do
  kill -0 "$pid" || { echo "the scheduler did not start" >&2; exit 1; }
  sleep 1
done
srun "$python" -m tuner worker "$address" --device "$device" "${tls[@]}" &

# A job that Slurm starts again goes on with its session.
resume=()
if [[ -e $session/session.db ]]; then resume=(--resume "$session"); else resume=("$@" --session "$session"); fi
"$python" -m tuner "${resume[@]}" --cluster "$address" "${tls[@]}"
