# MirrorMaker as an image, for every architecture of Debian that the packages have wheels for (amd64, arm64):
#
#     docker build --tag mm2 .
#     docker run --volume "$PWD/mm2.properties:/etc/mm2/mm2.properties:ro" mm2 /etc/mm2/mm2.properties --clusters B
#
# The base is the index of all its architectures. To renew it: docker buildx imagetools inspect debian:bookworm-slim
#
# The steps are in conf/docker, and tests/integration/deployment/test_image.py executes this file without Docker.
FROM debian:bookworm-slim@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171 AS build
WORKDIR /build
COPY conf/requirements.txt conf/
COPY conf/docker/packages.sh conf/docker/packages.txt conf/docker/locked.sh conf/docker/
# In a separate layer: packages change far less often than the code.
RUN conf/docker/packages.sh
COPY setup.cfg pyproject.toml README.md ./
COPY conf/docker/install.sh conf/docker/
COPY mm2 mm2
RUN conf/docker/install.sh

FROM debian:bookworm-slim@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171
COPY conf/docker/runtime.sh /root/
RUN /root/runtime.sh
COPY --from=build /opt/mm2 /opt/mm2
# The classes of Spark's JVM in one file, for this version of Java: it starts twice as fast.
RUN /opt/mm2/bin/python -P -m mm2.copy.driver.archive
ENV PATH=/opt/mm2/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /home/mm2
EXPOSE 8083
HEALTHCHECK --interval=15s --timeout=15s --start-period=60s --retries=3 CMD ["mm2-health"]
ENTRYPOINT ["tini", "--", "mm2-container"]
