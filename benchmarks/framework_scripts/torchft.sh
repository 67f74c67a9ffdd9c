#!/usr/bin/env bash
# Two replica groups of one rank each, and the lighthouse that they meet at: torchft.sh FOLDER [allreduce]
here=$(dirname "$(readlink -f "$0")")
port=${LIGHTHOUSE_PORT:-29510}
export RUST_LOG=warn
torchft_lighthouse --bind "127.0.0.1:$port" --min_replicas 1 --join_timeout_ms 10000 &
lighthouse=$!
trap 'kill $lighthouse' EXIT
export TORCHFT_LIGHTHOUSE=http://127.0.0.1:$port NUM_REPLICA_GROUPS=2

groups=()
for group in 0 1; do
    REPLICA_GROUP_ID=$group python -m torch.distributed.run --standalone --nproc-per-node 1 --max-restarts 2 \
        "$here/train_torchft.py" "$@" &
    groups+=($!)
done
failed=0
for group in "${groups[@]}"; do
    wait "$group" || failed=1
done
exit $failed
