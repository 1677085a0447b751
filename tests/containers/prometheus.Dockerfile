# Debian's Prometheus, on the image that the parties stand on.
ARG BASE=docker.io/library/python:3.11-slim-bookworm
FROM ${BASE}
RUN apt-get update && apt-get install -y --no-install-recommends prometheus && rm -rf /var/lib/apt/lists/*
ENTRYPOINT ["prometheus"]
