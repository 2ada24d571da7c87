#!/bin/sh
# Runs the study and writes its tables and pictures to results/, in about a minute.
set -eu
cd "$(dirname "$0")"
out=${1:-results}
mkdir -p "$out"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

counts=${COUNTS:-8,16,32,64,128,256} # microbatches
systems="--over compute=compute/slow.yaml,compute/mid.yaml,compute/fast.yaml"
systems="$systems --over network=network/slow.yaml,network/mid.yaml,network/fast.yaml"
all="--over schedule=gpipe,1f1b,chimera,chimera:scale=concatenation"

study() { # study NAME [pptrace sweep's arguments]: a table
  name=$1
  shift
  pptrace sweep paper.yaml "$@" --fresh -o "$out/$name.csv"
}

messages() { # messages POWER MB: an axis of microbatches, whose messages have so many MB at 8 and grow with number^POWER / number
  mkdir -p "$scratch/$1"
  for count in $(echo "$counts" | tr , ' '); do
    awk -v count="$count" -v power="$1" -v size="$2" 'BEGIN {
      printf "batch: {microbatches: %d}\ncosts: {boundary: %.0f B}\n", count, size * 1e6 * (count / 8) ^ power
    }' >"$scratch/$1/$count.yaml"
  done
  echo "--over microbatches=$(echo "$counts" | sed "s|[0-9][0-9]*|$scratch/$1/&.yaml|g")"
}

stages() { # stages NAME BLOCKS...: a file for each level of compute, with so many of 120 blocks on the stages
  name=$1
  shift
  for level in slow:289.24 mid:38.85 fast:15.80; do
    awk -v seconds="${level#*:}" 'BEGIN {
      for (i = 1; i < ARGC; i++) {
        forward = forward sprintf(", %.6f ms", seconds / 384e-3 * ARGV[i])
        backward = backward sprintf(", %.6f ms", seconds / 192e-3 * ARGV[i])
        activation = activation sprintf(", %d MiB", 8 * ARGV[i])
      }
      printf "parallel: {pp: %d}\ncosts:\n  slices: %d\n", ARGC - 1, ARGC - 1
      printf "  forward: [%s]\n  backward: [%s]\n", substr(forward, 3), substr(backward, 3)
      printf "  activation: [%s]\n", substr(activation, 3)
    }' "$@" >"$scratch/$name-$#-${level%:*}.yaml"
  done
}

among() { # among FILE...: an axis of stages
  echo "--over stages=$(echo "$@" | tr ' ' ,)"
}

# Figures 3 and 5: bubbles of formulas and tables, and peak activations.
few="--over pp=4,8 --over microbatches=$counts --x microbatches"
study figures-3-5 $few $all,constructions.py:capped
pptrace sweep paper.yaml $few --over schedule=gpipe,1f1b,chimera --y formula_bubble,table_bubble -o "$out/figure-3.svg"
pptrace sweep paper.yaml $few $all --y peak_activation_bytes -o "$out/figure-5.svg"

# Under both policies, with the size of messages that is fitted to each:
for fit in ${FITS:-async:680 sender-blocking:630}; do
  policy=${fit%:*} size=${fit#*:}
  set -- --p2p "$policy" --set "costs.boundary=$size MB"

  # Table I.
  study "table-1-$policy" $systems --over schedule=chimera,hanayo "$@"

  # Figure 4: step and idle time over microbatches on all systems (the paper shows three).
  study "figure-4-$policy" $systems $all --over microbatches=$counts "$@" -o "$out/figure-4-$policy.svg" --plot difference

  # The same with messages that do not shrink in proportion, and with time for each message and each computation.
  some="--over compute=compute/mid.yaml,compute/fast.yaml --over network=network/slow.yaml,network/mid.yaml"
  study "figure-4-root-$policy" $some $all $(messages 0.5 "$size") --p2p "$policy"
  study "figure-4-constant-$policy" $some $all $(messages 1 "$size") --p2p "$policy"
  some="--over compute=compute/fast.yaml --over network=network/slow.yaml"
  study "figure-4-per-message-$policy" $some $all --over microbatches=$counts --set 'network.overhead=50 ms' "$@"
  study "figure-4-per-computation-$policy" $some $all --over microbatches=$counts --set 'costs.overhead=50 ms' "$@"
done

# Figure 6: stages of 1 : 2, light ones first, mirrored between the directions; and other tables on the baseline.
stages even 30 30 30 30
stages even 15 15 15 15 15 15 15 15
stages uneven 20 20 40 40
stages uneven 10 10 10 10 20 20 20 20
set -- --schedule chimera --over network=network/slow.yaml,network/mid.yaml,network/fast.yaml --over microbatches=$counts
study figure-6-async $(among "$scratch"/*even-*.yaml) "$@"
study figure-6-sender-blocking $(among "$scratch"/*even-*.yaml) "$@" --p2p sender-blocking --set 'costs.boundary=630 MB'
stages reversed 40 40 20 20
stages reversed 20 20 20 20 10 10 10 10
study figure-6-tables $(among "$scratch"/*-mid.yaml) --over schedule=chimera,constructions.py:even --over microbatches=$counts
