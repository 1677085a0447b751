#!/bin/sh
# Provisions the federation of compose.yaml and puts every kit into the volume of its party. It
# sees all kits at once, which a trial may; in a deployment the key authority makes them, and they
# are carried by hand: docs/how-to/deploy-with-containers.md.
set -eu
umask 077
settings="${1:-/etc/fedrec/federation.toml}"
cd "${2:-/federation}"

if [ -e authority/prepared ]; then
  echo "The federation is prepared already; 'docker compose down --volumes' forgets it."
  exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$settings" "$work/federation.toml"
export FEDREC_CACHE="${FEDREC_CACHE:-$work/cache}"
fedrec data fetch ml-100k --into "$work/data"
fedrec provision "$work/federation.toml" --data "$work/data/interactions.csv" --into "$work/kits" \
  > "$work/commands"
# What an earlier start of this job left when it was interrupted; nobody has used it yet.
for party in authority coordinator client-1 client-2 client-3 monitoring; do
  find "$party" -mindepth 1 -delete
done
cp -a "$work/kits/authority/." authority
cp -a "$work/kits/coordinator/." coordinator
for client in client-1 client-2 client-3; do
  cp -a "$work/kits/clients/$client/." "$client"
done
# What Prometheus shows to whoever serves numbers.
head -c 24 /dev/urandom | base64 > monitoring/metrics-token
for party in authority coordinator client-1 client-2 client-3; do
  cp monitoring/metrics-token "$party/metrics-token"
done
touch authority/prepared
echo "Prepared: a kit for the authority, for the coordinator, and for each of three clients."
