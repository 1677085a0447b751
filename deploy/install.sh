#!/bin/sh
# Installs what fedrec and one of its extras need, but not fedrec itself.
set -eu
python3 -c "import sys, tomllib
project = tomllib.load(open('pyproject.toml', 'rb'))['project']
print(*project['dependencies'], *project['optional-dependencies'][sys.argv[1]], sep='\n')" \
  "$1" > requirements.txt
pip --python /opt/fedrec/bin/python install -c constraints.txt -r requirements.txt
