#!/bin/sh
# Installs the wheel with one of its extras, and lists what the image then has.
set -eu
extra=$1
set -- ./fedrec-*.whl
[ $# = 1 ] || { echo "dist/ has $# wheels of fedrec. Leave the one to install." >&2; exit 1; }
pip --python /opt/fedrec/bin/python install -c constraints.txt "$1[$extra]"
/opt/sbom/bin/cyclonedx-py environment --short-PURLs --output-reproducible \
  --output-file /opt/fedrec/sbom.cdx.json /opt/fedrec/bin/python
python3 sbom.py /opt/fedrec/sbom.cdx.json
