# Models with layers of several kinds: gated DeltaNet, Mamba-2, sparse attention, and wide messages.
set -eu

head_of_step() {
    pptrace simulate "$@" | sed -n '1p; /^step/p'
    echo
}

# Three of four layers have gated DeltaNet.
head_of_step --model qwen3-next-80b-a3b --cluster dgx-h100x8 --pp 4 --vp 2 --ep 8 --dp 16 --micro 1 --global 512 \
    --sequence 4096 --schedule interleaved-1f1b

# Each token attends to 2048 chosen keys.
head_of_step --model deepseek-v3.2 --cluster gb200-nvl72x4 --pp 8 --vp 2 --ep 32 --dp 32 --micro 1 --global 2048 \
    --sequence 32768 --schedule interleaved-1f1b --set model.recompute=full --set cluster.spare=true

# Mamba-2, attention and experts are layers; the published step is 39936 tokens/s on each of 8 GPUs.
head_of_step --model nemotron-3-nano --device gb300 --stack megatron-bridge-26.08 --pp 1 --ep 8 --dp 8 --micro 4 \
    --global 512 --sequence 8192 --schedule 1f1b --set model.precision=mxfp8 --set costs.cuda_graphs=true

# Attention residuals send four and seven widths between three stages, in place of one.
pptrace costs --model kimi-k3 --device gb300 --pp 3 --ep 64 --dp 64 --micro 1 --microbatches 4 --sequence 4096 \
    --schedule 1f1b --set 'model.layers_per_stage=[31, 31, 31]' | sed -n '/^bytes/,/^$/p'
