# A schedule of one's own beside a plugin's: what their tables look like, and what the order costs.
set -eu

for schedule in ./mine.py:make 1f1b; do
    pptrace show "$schedule" --pp 4 --microbatches 4
    echo
    pptrace simulate llama3-70b.yaml --schedule "$schedule" --vp 1 --global 64 --p2p async
    echo
done
