# The same two jobs on several clusters: which ranks wait, and for which links.
set -eu

echo "== eight DGX H100"
pptrace simulate llama3-70b-cluster.yaml
echo
echo "== eight PCIe boxes"
pptrace simulate llama3-70b-cluster.yaml --cluster pcie-8gpux8 | head -7
echo
echo "== one NVL72 against rails, the same GPUs"
for cluster in gb200-nvl72 dgx-h100x8; do
  pptrace simulate llama3-70b-cluster.yaml --cluster $cluster --device h100-sxm | grep -E 'cluster|^step|^idle|^busiest'
done
echo
echo "== oversubscription 1:1, 2:1, 4:1"
for ratio in 1 2 4; do
  echo "$ratio:1"
  pptrace simulate llama3-8b-fabric.yaml --set cluster.fabric.oversubscription=$ratio | grep -E '^step|^idle|^busiest'
done
echo
echo "== the route between two GPUs"
pptrace network llama3-8b-fabric.yaml --between 8,16 -o cluster.svg
