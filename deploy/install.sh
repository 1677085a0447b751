#!/bin/sh
# Installs the wheel with one of its extras, and lists what the image then has.
set -eu
pip --python /opt/fedrec/bin/python install -c constraints.txt "$(echo ./fedrec-*.whl)[$1]"
/opt/sbom/bin/cyclonedx-py environment --short-PURLs --output-reproducible \
  --output-file /opt/fedrec/sbom.cdx.json /opt/fedrec/bin/python
python3 sbom.py /opt/fedrec/sbom.cdx.json
