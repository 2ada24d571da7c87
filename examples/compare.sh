# Schedules side by side as formula, as table and simulated, and where the faster one of two changes.
set -eu

echo "== five schedules, 16 microbatches"
pptrace compare llama3-70b.yaml --p2p ordered --microbatches 16 \
  --schedules gpipe,1f1b,looped-bfs,chimera,hanayo
echo
echo "== separate settings, a custom schedule, and one that cannot run"
pptrace compare llama3-70b.yaml --p2p ordered --microbatches 16 \
  --schedules 1f1b,1f1b:p2p=async,interleaved-1f1b:vp=2,interleaved-1f1b:vp=1,./mine.py:make
echo
echo "== steps of three of them by policy"
pptrace compare llama3-70b.yaml --p2p ordered --microbatches 16 --schedules 1f1b,interleaved-1f1b,chimera --policies | sed '1,/^step time by policy/{/^step time by policy/!d;}'
echo
echo "== chimera against 1f1b, more and more microbatches; the same where its copies exchange no gradients"
pptrace crossover llama3-70b.yaml --p2p ordered --stack ideal --between chimera,1f1b --over microbatches=8..64
echo
pptrace crossover llama3-70b.yaml --p2p ordered --stack ideal --between chimera,1f1b --over microbatches=8..64 --set data_parallel.stage_replicas=false
echo
echo "== the same at 16 microbatches, more and more bandwidth"
pptrace crossover llama3-70b.yaml --p2p ordered --microbatches 16 --between chimera,1f1b --over bandwidth
