# The coordinator: adds up what it cannot read. It has no torch, and can hold no client's key.
#
#   docker build -f deploy/coordinator.Dockerfile -t fedrec-coordinator .
#
# BASE may name a mirror or a digest.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
RUN python3 -m venv --without-pip /opt/fedrec
# What fedrec needs changes less often than fedrec: a layer of its own.
COPY pyproject.toml constraints.txt ./
RUN python3 -c "import tomllib; \
project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
print(*project['dependencies'], *project['optional-dependencies']['server'], sep='\n')" \
      > requirements.txt \
    && pip --python /opt/fedrec/bin/python install -c constraints.txt -r requirements.txt
COPY . .
RUN pip --python /opt/fedrec/bin/python install --no-deps .

FROM ${BASE} AS installed
ENV PATH=/opt/fedrec/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/fedrec fedrec \
    && install -d -o fedrec -g fedrec -m 700 /var/lib/fedrec
COPY --from=builder /opt/fedrec /opt/fedrec

# `--target setup` prepares the federation of compose.yaml; it needs pip to fetch the data.
FROM installed AS setup
# A new volume takes its owner from the folder that it is mounted on.
RUN python -m ensurepip > /dev/null \
    && for party in authority coordinator client-1 client-2 client-3; do \
         install -d -o fedrec -g fedrec -m 700 "/federation/$party"; \
       done
COPY --chmod=755 deploy/prepare.sh /usr/local/bin/prepare-federation
USER 10001:10001
WORKDIR /federation
ENTRYPOINT ["prepare-federation"]

FROM installed
COPY deploy/health.py /usr/local/lib/fedrec/health.py
USER 10001:10001
WORKDIR /var/lib/fedrec
# Settings, keys and state, durable across restarts.
VOLUME /var/lib/fedrec
EXPOSE 7447
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=20s --retries=3 \
    CMD ["python", "/usr/local/lib/fedrec/health.py", "/var/lib/fedrec/run.toml"]
ENTRYPOINT ["fedrec"]
CMD ["coordinator", "run", "/var/lib/fedrec/run.toml"]
