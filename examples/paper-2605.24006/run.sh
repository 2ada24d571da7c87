#!/bin/sh
# Runs the study and writes its tables and pictures to results/: a minute or two. Needs pip install 'pptrace[plot]'.
set -eu
cd "$(dirname "$0")"
out=${1:-results}
mkdir -p "$out"

compute=compute/slow.yaml,compute/mid.yaml,compute/fast.yaml
network=network/slow.yaml,network/mid.yaml,network/fast.yaml
counts=8,16,32,64,128,256

study() {  # study NAME [pptrace sweep's arguments]
  name=$1
  shift
  pptrace sweep paper.yaml "$@" --fresh -o "$out/$name.csv" -o "$out/$name.svg"
}

# Table I, under both policies; the message's size is fitted to each.
study table-1 --over compute=$compute --over network=$network --over schedule=chimera,hanayo --plot winners
study table-1-sender-blocking --over compute=$compute --over network=$network --over schedule=chimera,hanayo \
  --plot winners --p2p sender-blocking --set 'costs.boundary=630 MB'

# Figure 3: bubbles of formulas and tables.
study figure-3 --over schedule=gpipe,1f1b,chimera --over microbatches=$counts --y formula_bubble,table_bubble
study figure-3-pp-4 --over schedule=gpipe,1f1b,chimera --over microbatches=$counts --y formula_bubble,table_bubble --pp 4

# Figure 4: step and idle time over microbatches on all systems (the paper shows three).
grid="--over compute=$compute --over network=$network"
study figure-4 $grid --over schedule=gpipe,1f1b,chimera --over microbatches=$counts --plot difference
study figure-4-sender-blocking $grid --over schedule=gpipe,1f1b,chimera --over microbatches=$counts \
  --plot difference --p2p sender-blocking --set 'costs.boundary=630 MB'
study figure-4-concatenation $grid --over schedule=gpipe,chimera,chimera:scale=concatenation --over microbatches=$counts \
  --plot difference
study figure-4-overhead $grid --over schedule=gpipe,1f1b,chimera --over microbatches=$counts --plot difference \
  --set 'network.overhead=50 ms'

# The three systems that the paper shows, with their own scales.
for system in slow-fast mid-mid fast-slow; do
  study figure-4-$system --over network=network/${system%-*}.yaml --over compute=compute/${system#*-}.yaml \
    --over schedule=gpipe,1f1b,chimera --over microbatches=$counts
done

# Figure 5: peak activations.
study figure-5 --over schedule=gpipe,1f1b,chimera --over microbatches=$counts --y peak_activation_bytes

# Figure 6: stages of 1 : 2, mirrored between the directions.
study figure-6-pp-4 --pp 4 --schedule chimera --over partition=partition/even-4.yaml,partition/uneven-4.yaml \
  --over microbatches=$counts --plot difference
study figure-6-pp-8 --schedule chimera --over partition=partition/even-8.yaml,partition/uneven-8.yaml \
  --over microbatches=$counts --plot difference
