# Built from a checkout: docker build -t fencegate .
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE requirements.lock ./
COPY fencegate fencegate
COPY migrations migrations
RUN python -m venv /opt/fencegate \
 && /opt/fencegate/bin/pip install --no-cache-dir --constraint requirements.lock .

FROM python:3.12-slim
COPY --from=build /opt/fencegate /opt/fencegate
RUN useradd --system --uid 10001 --no-create-home fencegate
USER fencegate
ENV PATH=/opt/fencegate/bin:$PATH PYTHONUNBUFFERED=1
HEALTHCHECK --interval=5s --timeout=3s CMD \
  ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8081/live', timeout=2)"]
ENTRYPOINT ["fencegate"]
CMD ["serve", "--migrate"]
