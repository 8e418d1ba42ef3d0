#!/bin/sh
# This project into /opt/mm2, beside its packages. Second step of the image.
set -eu
export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m pip --python /opt/mm2/bin/python install --no-deps --no-build-isolation .
python3 -m pip --python /opt/mm2/bin/python uninstall --yes setuptools
