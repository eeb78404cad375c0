# nngk serve, with the model mounted at /model:
#   docker build -t nngk . && docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD/my-model:/model" nngk
FROM python:3.11-slim-bookworm AS build

# The compiled core of the search needs a compiler once.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential cmake \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/nngk
ENV PATH=/opt/nngk/bin:$PATH
# Another index, such as the one of PyTorch's smaller CPU builds, is given with --build-arg PIP_EXTRA_INDEX_URL=…
ARG PIP_EXTRA_INDEX_URL
WORKDIR /src
COPY pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY native native
COPY src src
# hadolint ignore=DL3013
RUN pip install --no-cache-dir ".[serve,milvus]"

FROM python:3.11-slim-bookworm
COPY --from=build /opt/nngk /opt/nngk
ENV PATH=/opt/nngk/bin:$PATH PYTHONUNBUFFERED=1 OMP_WAIT_POLICY=PASSIVE
# The owner of a mounted folder must be this user where classes are taught.
RUN useradd --uid 1000 --create-home nngk
USER 1000
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["nngk"]
CMD ["serve", "/model", "--host", "0.0.0.0"]
