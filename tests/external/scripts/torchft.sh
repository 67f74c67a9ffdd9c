#!/bin/bash
# Two replica groups of torchft: torchft.sh PYTHON LIGHTHOUSE PORT PORT PORT
export TORCHFT_LIGHTHOUSE=http://127.0.0.1:$3 NUM_REPLICA_GROUPS=2
"$2" --min_replicas 2 --quorum_tick_ms 100 --bind "[::]:$3" & lighthouse=$!
REPLICA_GROUP_ID=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=$4 RANK=0 WORLD_SIZE=1 "$1" "$(dirname "$0")/torchft_group.py" & first=$!
REPLICA_GROUP_ID=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$5 RANK=0 WORLD_SIZE=1 "$1" "$(dirname "$0")/torchft_group.py" & second=$!
wait $first && wait $second
code=$?
kill $lighthouse
exit $code
