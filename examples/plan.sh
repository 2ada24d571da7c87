# GPUs and a model in, the configuration to run out: with reasons, as a file, and what would make it faster.
set -eu

pptrace plan llama3-70b.yaml --model llama3-8b --gpus 32 --memory 40GiB --global 128 --cp 1 --p2p async --top 5 \
  --vary schedule=1f1b,interleaved-1f1b,zb-v --vary tp=1,2,4 --vary micro=1,2 --vary zero=1 -o best.yaml
echo
cat best.yaml
echo
pptrace simulate best.yaml | sed -n 3p
echo
pptrace whatif best.yaml --lost 1
echo
pptrace sweep llama3-70b.yaml --model llama3-8b --global 128 --p2p async --gpus 32 \
  --over 'layout={pp: 4, tp: 1},{pp: 2, tp: 4},{pp: 4, tp: 2, model.recompute: full}' --over schedule=1f1b,zb-v
