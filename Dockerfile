# docker build -t mm2 . && docker run -v $PWD/conf:/etc/mm2 mm2 /etc/mm2/connect-mirror-maker.properties --clusters B
FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/mm2
COPY constraints.txt ./
# In a layer of their own: they change far less often than the code. The second line is for old JKS key stores; twofish,
# which pyjks asks for but only BKS stores would use, needs a compiler and is left out.
RUN export PIP_CONSTRAINT=constraints.txt PIP_NO_CACHE_DIR=1 \
    && pip install pyspark kafka-python configargparse structlog javaproperties crc32c cramjam cryptography httpx rich setuptools \
    && pip install --no-deps pyjks javaobj-py3 pyasn1 pyasn1_modules pycryptodomex
COPY setup.cfg pyproject.toml README.md ./
COPY mm2 mm2
# The classes of Spark's JVM in one file: it starts twice as fast.
RUN pip install --no-cache-dir --no-deps --no-build-isolation . && python -P -m mm2.copy.driver.archive

RUN useradd --system --create-home mm2
USER mm2
WORKDIR /home/mm2
ENTRYPOINT ["connect-mirror-maker"]
