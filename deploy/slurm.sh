#!/bin/bash
# One training over the nodes of a job: store, learner and gateway on the first, runners on all the others.
#
#   sbatch --nodes 5 --gres gpu:1 deploy/slurm.sh deploy/kubernetes/train.yaml /shared/runs/mine [OPTIONS OF train]
#
# LEARNERS=2 RANKS=8 has the first two nodes learn together, with eight ranks each (docs/scaling.md): one for each card of
# `--gres gpu:8`. Without them one process learns. With servers that sample (`--sampler vllm --sampler-url …`), which may
# still be starting, the learner waits for them as long as `--sampler-wait` says.
#
# Every node sees the repository's environment and the run folder under the same path. SIGTERM comes 120 s before the
# time limit: the learner writes a checkpoint, and the job queues itself again and goes on from it. STORE_URL names a
# PostgreSQL database (its password in PGPASSWORD); without one the store is a file on the first node, which is enough:
# a training that goes on begins its step anew.
#SBATCH --job-name=mini-agentic-rl
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=32G
#SBATCH --time=12:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

set -euo pipefail
config=$(realpath "${1:?the file of settings}")
run=${2:?the run folder, on a shared file system}
shift 2

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
learners=${LEARNERS:-1}
ranks=${RANKS:-1}
runners=$((${#nodes[@]} - learners))
((runners > 0)) || { echo "$((learners + 1)) nodes at least: $learners to learn, the others run agents" >&2; exit 2; }
learning=$(IFS=,; echo "${nodes[*]:0:learners}")
store_port=$((20000 + SLURM_JOB_ID % 10000))
gateway_port=$((store_port + 10000))

# srun hands the environment on; a key on a command line could be read by every user of a node.
AGL_API_KEY=$(python -c 'import secrets; print(secrets.token_hex(32))')
export AGL_API_KEY AGL_MANAGED_STORE=0 AGL_SERVER_HOST=$head AGL_SERVER_PORT=$store_port

if [[ -n ${STORE_URL:-} ]]; then
    kept=(--url "$STORE_URL")
else
    kept=(--path "${TMPDIR:-/tmp}/agl-$SLURM_JOB_ID.db")
fi

learn=(mini-agentic-rl)
if ((learners * ranks > 1)); then
    # Rank 0 has the gateway, so it has to be on the first node: each is told its place, which srun knows.
    learn=(bash -c 'exec torchrun --node-rank "$SLURM_NODEID" "$@"' torchrun --nnodes "$learners"
        --nproc-per-node "$ranks" --master-addr "$head" --master-port $((store_port + 20000)) -m mini_agentic_rl)
fi

srun --nodes=1 --ntasks=1 --overlap --nodelist="$head" --cpus-per-task=1 mini-agentic-rl store --host 0.0.0.0 --port "$store_port" "${kept[@]}" &
store=$!
AGL_CURRENT_ROLE=runner srun --nodes="$runners" --ntasks="$runners" --exclude="$learning" \
    mini-agentic-rl train --config "$config" &
agents=$!
AGL_CURRENT_ROLE=algorithm srun --nodes="$learners" --ntasks="$learners" --overlap --nodelist="$learning" \
    "${learn[@]}" train --config "$config" --output-dir "$run" --resume \
    --gateway-host 0.0.0.0 --gateway-port "$gateway_port" --gateway-url "http://$head:$gateway_port" "$@" &
learner=$!

requeued=0
on_term() {
    requeued=1
    kill -TERM "$learner" 2>/dev/null || true
}
trap on_term TERM

# `wait` returns when a trap has run, too: until the learner has really ended.
status=0
while kill -0 "$learner" 2>/dev/null; do
    status=0
    wait "$learner" || status=$?
done
trap - TERM
kill -TERM "$agents" "$store" 2>/dev/null || true
wait "$agents" "$store" 2>/dev/null || true
if ((requeued)); then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
