# Slices of sequences, and forwards further ahead: what the tables look like, and what they change.
set -eu

pptrace show seq-1f1b --pp 4 --microbatches 3 --option slices=2
echo
pptrace show eager-1f1b --pp 4 --microbatches 6
echo
pptrace compare llama3-70b.yaml --vp 1 --microbatches 16 --p2p async \
    --schedules 1f1b,eager-1f1b,seq-1f1b:slices=2,seq-1f1b:slices=4
