# The server, and the stand-in gateway (python -m de2generator), in one image.
FROM python:3.11-slim AS build
WORKDIR /src
# More packages from PyPI, such as psycopg[binary]==3.3.9 for PostgreSQL.
ARG EXTRA_PACKAGES=""
COPY requirements.txt ./
# The list first: it changes seldom, and its wheels are kept while only the code changes.
# hadolint ignore=SC2086
RUN python -m pip wheel --no-cache-dir --disable-pip-version-check --wheel-dir /wheels \
        --requirement requirements.txt ${EXTRA_PACKAGES}
COPY pyproject.toml LICENSE ./
COPY PythonServer ./PythonServer
RUN python -m pip wheel --no-cache-dir --disable-pip-version-check --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
RUN useradd --system --user-group --uid 10001 --no-create-home --home-dir /nonexistent \
        --shell /usr/sbin/nologin pythonserver \
    && install --directory --owner=pythonserver --group=pythonserver --mode=0700 /data
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    python -m pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore \
        --no-index /wheels/*.whl

ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOST=0.0.0.0 \
    PORT=8000 \
    DATA_DIR=/data
# HOST=0.0.0.0 is refused without a key: set AUTH_JWT_SECRET, AUTH_JWT_PUBLIC_KEY or AUTH_JWKS_URL.
# By number, so that an orchestrator can tell that it is not root.
USER 10001
WORKDIR /data
VOLUME ["/data"]
EXPOSE 8000
STOPSIGNAL SIGTERM
# No curl in the image, and no proxy on the way to ourselves.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://127.0.0.1:' + os.environ['PORT'] + '/livez', timeout=4)"]
CMD ["python", "-m", "api"]
