# Sharded weights against a pipeline on one NVL72 rack, without prefetch, and on two racks.
set -eu

echo "== FSDP"
pptrace simulate no_pipeline.yaml -o no_pipeline.pftrace
echo
echo "== a pipeline on the same GPUs"
pptrace simulate no_pipeline.yaml --pp 8 --vp 5 --dp 4 --schedule interleaved-1f1b --set costs.zero=1 |
  grep '^pp\|^step\|^data'
echo
echo "== FSDP without prefetch"
pptrace simulate no_pipeline.yaml --set data_parallel.prefetch=0 | grep '^step\|^idle\|^data'
echo
echo "== two racks, each a shard group"
pptrace simulate no_pipeline.yaml --dp 64 --set cluster.nodes=2 --set batch.global=128 \
  --set data_parallel.shard=32 | grep '^step\|^idle\|^data'
echo
echo "== one shard group on two racks"
pptrace simulate no_pipeline.yaml --dp 64 --set cluster.nodes=2 --set batch.global=128 |
  grep '^step\|^idle\|^data'
echo
echo "== backwards gather in a rack"
pptrace simulate no_pipeline.yaml --dp 64 --set cluster.nodes=2 --set batch.global=128 \
  --set data_parallel.reshard=32 | grep '^step\|^idle\|^data'
