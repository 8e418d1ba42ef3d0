#!/bin/sh
# The packages of packages.txt into /opt/mm2, in the versions and with the hashes of conf/requirements.txt. First step of the image.
set -eu
export DEBIAN_FRONTEND=noninteractive PIP_NO_CACHE_DIR="${PIP_NO_CACHE_DIR-1}" PIP_DISABLE_PIP_VERSION_CHECK=1
apt-get update
apt-get install --yes --no-install-recommends ca-certificates python3 python3-pip python3-venv
# Without pip: it has no business in the image, and installs from outside just as well.
python3 -m venv --without-pip /opt/mm2
# What has to be built is built with the setuptools that is installed first, not with one that pip downloads for it.
echo setuptools >/tmp/tools.txt
for names in /tmp/tools.txt conf/docker/packages.txt; do
    conf/docker/locked.sh "$names" >/tmp/requirements.txt
    python3 -m pip --python /opt/mm2/bin/python install --no-deps --no-build-isolation --require-hashes -r /tmp/requirements.txt
done
