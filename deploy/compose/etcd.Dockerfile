# etcd as Debian ships it (3.4): enough for trying out, and no image of a third party.
FROM debian:12-slim
RUN apt-get update && apt-get install --yes --no-install-recommends etcd-server && rm -rf /var/lib/apt/lists/*
