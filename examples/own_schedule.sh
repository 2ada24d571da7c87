# A schedule of one's own beside a plugin's, on the same costs: what does its order cost?
set -eu

for schedule in ./mine.py:make 1f1b; do
    pptrace simulate --schedule "$schedule" --pp 4 --microbatches 8
    echo
done
