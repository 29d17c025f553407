# rankcall inside an Axolotl image, in that image's own Python environment; nothing there is changed.
ARG BASE=axolotlai/axolotl-cloud-uv:main-py3.11-cu130-2.9.1
FROM ${BASE}

# tini passes signals on and reaps what a training leaves behind; its version is the base image's business
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/rankcall
COPY pyproject.toml README.md ./
COPY coordinator coordinator
COPY agent agent
RUN if command -v uv >/dev/null; then uv pip install --python "$(command -v python)" --no-cache . ; \
    else python -m pip install --no-cache-dir . ; fi \
    && rankcall --version

WORKDIR /workspace
# the page and the API; Jupyter keeps its 8888, training takes 29500 and ephemeral ports between replicas
EXPOSE 8000
ENTRYPOINT ["tini", "-g", "--"]
CMD ["rankcall", "up"]
