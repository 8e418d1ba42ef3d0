#!/bin/sh
# The packages of setup.cfg, without those of tests, in the versions of constraints.txt, in /opt/mm2. First step of the image.
set -eu
export DEBIAN_FRONTEND=noninteractive PIP_NO_CACHE_DIR="${PIP_NO_CACHE_DIR-1}" PIP_DISABLE_PIP_VERSION_CHECK=1
export PIP_CONSTRAINT=constraints.txt # binds what builds packages, too
apt-get update
apt-get install --yes --no-install-recommends ca-certificates python3 python3-pip python3-venv
# Without pip: it has no business in the image, and installs from outside just as well.
python3 -m venv --without-pip /opt/mm2
python3 - >/tmp/requirements.txt <<'PYTHON'
import configparser

setup = configparser.ConfigParser()
setup.read("setup.cfg", encoding="utf-8")
print(setup["options"]["install_requires"])
print(setup["options.extras_require"]["aws"])
PYTHON
python3 -m pip --python /opt/mm2/bin/python install -r /tmp/requirements.txt
# For JKS stores. What else pyjks asks for, twofish, needs a compiler, and only BKS stores, which Kafka does not know, use it.
python3 -m pip --python /opt/mm2/bin/python install --no-deps pyjks javaobj-py3 pyasn1 pyasn1_modules pycryptodomex
# For building this project, in the next step.
python3 -m pip --python /opt/mm2/bin/python install setuptools
