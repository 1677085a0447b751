# A client: trains on private data and keeps the keys. It runs no database and no server.
#
#   docker build -f deploy/client.Dockerfile -t fedrec-client \
#     --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu .
#
# TORCH_INDEX is the package index that torch alone is taken from:
#   https://download.pytorch.org/whl/cpu   without CUDA, for machines without a GPU
#   empty (the default)                    pip's own index: on PyPI the build with CUDA for Linux
#                                          x86-64, several GB larger
# BASE may name a mirror or a digest.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS builder
ARG TORCH_INDEX=
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
RUN python3 -m venv --without-pip /opt/fedrec
# What fedrec needs changes less often than fedrec: layers of their own, the largest first.
COPY constraints.txt ./
RUN pip --python /opt/fedrec/bin/python install --no-deps -c constraints.txt \
      ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
COPY pyproject.toml ./
RUN python3 -c "import tomllib; \
project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
print(*project['dependencies'], *project['optional-dependencies']['client'], sep='\n')" \
      > requirements.txt \
    && pip --python /opt/fedrec/bin/python install -c constraints.txt -r requirements.txt
COPY . .
RUN pip --python /opt/fedrec/bin/python install --no-deps .

FROM ${BASE}
ENV PATH=/opt/fedrec/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/fedrec fedrec \
    && install -d -o fedrec -g fedrec -m 700 /var/lib/fedrec
COPY --from=builder /opt/fedrec /opt/fedrec
USER 10001:10001
WORKDIR /var/lib/fedrec
# Settings, keys, interactions and private vectors: one volume a client, never shared.
VOLUME /var/lib/fedrec
STOPSIGNAL SIGTERM
ENTRYPOINT ["fedrec"]
CMD ["client", "run", "/var/lib/fedrec/run.toml"]
