# Where did the time of a recorded step go, how much of it does the model explain, and what would another schedule
# have taken on the same machines? run-1f1b/ is what PyTorch's profiler recorded of four processes.
set -eu

echo "== where the time went"
pptrace explain run-1f1b
echo
echo "== its order, durations and transfers, simulated"
pptrace replay run-1f1b
echo
echo "== costs and network, fitted to it"
pptrace calibrate run-1f1b -o costs.yaml
echo
echo "== the fit, simulated, and other schedules with it"
pptrace simulate costs.yaml | head -3
pptrace compare costs.yaml --schedules gpipe,1f1b,interleaved-1f1b:vp=2
