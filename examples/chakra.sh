# A simulated pipeline as Chakra execution traces, which ASTRA-sim reads with --workload-configuration=step.et/step.
set -eu

echo "== a file per rank"
pptrace simulate --schedule 1f1b --pp 4 --microbatches 8 -o step.pftrace -o step.et/ | head -3
ls step.et
echo
echo "== the same step again"
pptrace diff step.pftrace step.et
