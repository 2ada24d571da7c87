torchrun --nproc-per-node 8 pretrain_gpt.py \
  --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 \
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 14336 --group-query-attention \
  --num-query-groups 8 --swiglu --vocab-size 128256 --seq-length 8192 --micro-batch-size 1 --global-batch-size 64 \
  --bf16 --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce
