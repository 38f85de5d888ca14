# The base is pinned by tag. Where you build, pin its digest too: --build-arg PYTHON=python:3.13-slim@sha256:…
ARG PYTHON=python:3.13-slim

FROM ${PYTHON} AS build
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY certs certs
COPY webhook webhook
RUN pip wheel --no-cache-dir --no-deps --wheel-dir dist . \
 && python -m venv --without-pip /opt/interlock \
 && pip --python /opt/interlock/bin/python install --no-cache-dir --constraint constraints.txt dist/*.whl
# The Kubernetes client's generated classes are three fifths of all that is installed, and load when one is named: the
# product names none.
RUN find /opt/interlock -regex '.*/kubernetes/\(aio/\)?client/\(api\|models\)/.*\.pyc?' ! -name '__init__.*' -delete \
 && /opt/interlock/bin/interlock --version

FROM ${PYTHON}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="trainjob-interlock" \
      org.opencontainers.image.description="Nothing re-admits a Kubeflow TrainJob while any pod of it may still run." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN pip uninstall --yes --root-user-action=ignore pip
COPY --from=build /opt/interlock /opt/interlock
# A user without a name has no home, and the Kubernetes client fails to start without one. glibc moves the size from
# which it gives memory back at once up to 32 MiB once a large review was freed, unless it is set.
ENV HOME=/ \
    MALLOC_MMAP_THRESHOLD_=65536 \
    PATH=/opt/interlock/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# A number, so that runAsNonRoot can be checked; any other works as well: nothing is written, nothing is owned.
USER 65532:65532
EXPOSE 9443
ENTRYPOINT ["interlock"]
CMD ["serve"]
