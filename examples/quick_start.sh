# The main job: simulate a training step, write it as traces, change two things, ask for three numbers.
set -eu

mkdir ranks
pptrace simulate llama3-70b.yaml -o step.pftrace -o 'ranks/rank{rank}.json.gz' --only microbatches=0:32
echo
pptrace simulate llama3-70b.yaml --set network.bandwidth='200 Gb/s'
echo
pptrace simulate llama3-70b.yaml --schedule 1f1b --vp 1 --json | grep -E '^  "(step_ns|bubble|mfu)"'
