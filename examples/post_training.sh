# A step of reinforcement learning: replicas with consecutive responses, then balanced by work, on context-parallel
# groups that fit each response.
set -eu

step() {
    echo "== $1"
    shift
    pptrace simulate post_training.yaml "$@" | grep -E '^(step|critical path|idle by cause)'
}

step "consecutive responses"
step "balanced, dynamic context parallelism" \
    --set batch.documents.balance=work --set batch.documents.dynamic_cp=true
