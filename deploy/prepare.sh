#!/bin/sh
# Prepares the federation of compose.yaml: data, keys and certificates, each into the volume of
# the party that it belongs to. It plays every client and the key authority at once,
# which a demonstration may and a deployment must not; docs/how-to/deploy-with-containers.md
# says who does what there.
set -eu
umask 077
cd /federation

if [ -e authority/prepared ]; then
  echo "The federation is prepared already; 'docker compose down --volumes' forgets it."
  exit 0
fi

echo "Data: a third of the users for each client"
export FEDREC_CACHE="${FEDREC_CACHE:-/tmp/cache}"
fedrec data fetch ml-100k --into /tmp/data --force
fedrec data split /tmp/data/interactions.csv --clients 3 --into /tmp/split --force
for party in coordinator client-1 client-2 client-3; do
  install -d -m 700 "$party/keys"
  install -m 600 /etc/fedrec/run.toml "$party/run.toml"
  install -m 600 /tmp/split/catalogue.csv "$party/catalogue.csv"
done
for client in client-1 client-2 client-3; do
  install -m 600 "/tmp/split/$client/interactions.csv" "$client/interactions.csv"
done

echo "Keys: each client's own, then the epoch's, wrapped to each client"
for client in client-1 client-2 client-3; do
  fedrec keys identity "$client/state" --label "$client"
done
fedrec keys new coordinator/run.toml --into authority/keys \
  --client client-1/state/identity.pub.json \
  --client client-2/state/identity.pub.json \
  --client client-3/state/identity.pub.json

echo "Certificates: the coordinator's, the operator's, and each client's"
# The operator's key is here because `docker compose exec coordinator fedrec status` needs it.
install -m 600 authority/keys/epoch.json authority/keys/coordinator.pem \
  authority/keys/operator.crt authority/keys/operator.pem coordinator/keys/
for client in client-1 client-2 client-3; do
  install -m 600 authority/keys/authority.pub.json "$client/keys/"
  install -m 600 "authority/keys/clients/$client.crt" "$client/state/client.crt"
done
touch authority/prepared
echo "Prepared."
