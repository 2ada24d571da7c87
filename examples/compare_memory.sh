# Schedules on equal memory: each in its best form that fits, and one of them again.
set -eu

echo "== which schedule, in 40 GiB per rank"
pptrace compare llama3-70b.yaml --p2p ordered --microbatches 16 --schedules 1f1b,interleaved-1f1b,zb-h1,zb-v,v-half --memory 40GiB
echo
echo "== one of them again"
pptrace simulate llama3-70b.yaml --p2p ordered --microbatches 16 \
  --schedule 1f1b --vp 1 --set 'device.memory=40 GiB' --set model.recompute=full | sed -n 3p
