# The image of `autoj`, for the CPU or for CUDA 13, with the versions of requirements/*.txt.
#   docker build --tag autoj-reward:0.1.0-cpu .
#   docker build --tag autoj-reward:0.1.0-gpu --build-arg ACCELERATOR=gpu .
# A package index of your own is named in pip's configuration. As a secret it stays out of the image:
#   docker build --secret id=pip,src=$HOME/.config/pip/pip.conf ...
ARG BASE=python:3.11.14-slim-bookworm

FROM ${BASE} AS build
ARG ACCELERATOR=cpu
# Files are copied from uv's cache, which is no part of the image.
ENV UV_LINK_MODE=copy
WORKDIR /build
RUN python -m venv /opt/autoj
COPY requirements requirements
RUN --mount=type=cache,target=/root/.cache --mount=type=secret,id=pip,target=/etc/pip.conf \
    /opt/autoj/bin/python requirements/install.py ${ACCELERATOR}
COPY . .
RUN --mount=type=cache,target=/root/.cache \
    /opt/autoj/bin/uv pip install --python /opt/autoj/bin/python --compile-bytecode \
    --no-deps --no-build-isolation .

FROM ${BASE}
# vLLM's CPU build loads libnuma, Triton compiles with gcc, KubeRay's probes call wget, and some of its
# versions start Ray in a login shell, which sets PATH anew.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libnuma1 wget \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home --shell /bin/bash autoj \
    && echo 'PATH=/opt/autoj/bin:$PATH' >/etc/profile.d/autoj.sh
COPY --from=build /opt/autoj /opt/autoj
ENV PATH=/opt/autoj/bin:$PATH
# By number, so that Kubernetes can see that it is not root.
USER 1000
WORKDIR /home/autoj
COPY configs configs
# A volume that is mounted there is then this user's.
RUN mkdir .cache runs
EXPOSE 8300
# It says that the process answers. /readyz says whether a replica could judge.
HEALTHCHECK --start-period=15m --interval=15s --timeout=5s \
    CMD ["wget", "--quiet", "--output-document=/dev/null", "http://127.0.0.1:8300/healthz"]
ENTRYPOINT ["autoj"]
CMD ["serve", "--config=configs/serve/default.yaml", "--set=host=0.0.0.0"]
