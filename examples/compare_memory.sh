# Schedules on equal memory: each in its best form that fits, and one of them again.
set -eu

echo "== which schedule, in 30 GiB per rank"
pptrace compare llama3-70b.yaml --p2p ordered --microbatches 16 --memory 30GiB \
  --schedules 1f1b,interleaved-1f1b,zb-v --set 'device.host_bandwidth=64 GB/s'
echo
echo "== in 76 GiB, messages as Megatron issues them where it runs the schedule"
pptrace compare llama3-70b.yaml --microbatches 16 --schedules 1f1b,interleaved-1f1b,zb-v,dualpipe-v --memory 76GiB \
  | sed '/^peak/,/^simulated/d; /^commands that/,$d'
echo "== one of them again"
pptrace simulate llama3-70b.yaml --p2p ordered --microbatches 16 \
  --set 'device.host_bandwidth=64 GB/s' --schedule 1f1b --vp 1 --set 'device.memory=30 GiB' --set schedule.offload.ratio=0.25 | sed -n 3p
