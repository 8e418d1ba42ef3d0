#!/bin/sh
# What the image has besides /opt/mm2: Python, Java for Spark, an init that reaps what Spark leaves behind, and the user.
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install --yes --no-install-recommends ca-certificates openjdk-17-jre-headless python3 tini
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
# A number is what Kubernetes' runAsNonRoot can judge.
groupadd --gid 10001 mm2
useradd --uid 10001 --gid mm2 --create-home --shell /usr/sbin/nologin mm2
