"""Holds manifests that check-chart rendered against Kubernetes' schemas, and against what the relay needs."""

import sys
import tomllib
from pathlib import Path

import kubernetes_validate
import yaml

# The oldest of kubeVersion in Chart.yaml, and the newest there is.
VERSIONS = ["1.27", "1.37"]
# Definitions of the Prometheus Operator, not of Kubernetes.
FOREIGN = {"ServiceMonitor", "PrometheusRule"}

chart, rendered = map(Path, sys.argv[1:])
alerts = yaml.safe_load((chart / "../../prometheus/alerts.yml").read_text())
wrong = []


def check(name, holds, what):
    if not holds:
        wrong.append(f"{name}: {what}")


def pod(name, deployment):
    """What the relay needs of its pod, whatever the values."""
    spec = deployment["spec"]
    template = spec["template"]
    inside = template["spec"]
    container = inside["containers"][0]
    labels = template["metadata"]["labels"]
    check(name, spec["selector"]["matchLabels"].items() <= labels.items(), "the selector does not find the pods")
    check(name, container["readinessProbe"]["httpGet"]["path"] == "/healthz", "a stand-by is not ready")
    if labels["app.kubernetes.io/component"] == "relay" and spec["strategy"]["type"] != "Recreate":
        started_first = {"maxSurge": 1, "maxUnavailable": 0}
        check(name, spec["strategy"]["rollingUpdate"] == started_first, "an old pod ends before a new one stands by")
    secured = container["securityContext"]
    check(name, secured["readOnlyRootFilesystem"] and secured["capabilities"] == {"drop": ["ALL"]}, "capabilities")
    check(name, inside["securityContext"]["runAsNonRoot"], "may run as root")
    check(name, inside["automountServiceAccountToken"] is False, "has a token")
    mounts, volumes = container["volumeMounts"], inside["volumes"]
    check(name, {it["name"] for it in mounts} == {it["name"] for it in volumes}, "volumes are not those mounted")
    for volume in volumes:
        if volume["name"] == "pgpass":
            check(name, volume["secret"]["defaultMode"] == 0o440, "walrelay refuses this mode of a password file")
            check(name, inside["securityContext"]["fsGroup"] == 10001, "its user cannot read the password file")


for file in sorted(chart.glob("ci/*.yaml")):
    documents = [it for it in yaml.safe_load_all((rendered / file.name).read_text()) if it]
    kinds = [it["kind"] for it in documents]
    for document in documents:
        kind = document["kind"]
        name = f"{file.name}: {kind} {document['metadata']['name']}"
        for version in VERSIONS if kind not in FOREIGN else []:
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                check(name, False, f"{version}: {error.message} at {'.'.join(map(str, error.path))}")
        if kind == "Deployment":
            pod(name, document)
        if kind == "ConfigMap" and "walrelay.toml" in document["data"]:
            tomllib.loads(document["data"]["walrelay.toml"])
        if kind == "PrometheusRule":
            check(name, document["spec"] == alerts, "is not deploy/prometheus/alerts.yml")
        if kind == "ServiceMonitor":
            services = [it for it in documents if it["kind"] == "Service"]
            found = document["spec"]["selector"]["matchLabels"].items() <= services[0]["metadata"]["labels"].items()
            check(name, found, "does not find the Service")
            check(name, document["spec"]["endpoints"][0]["port"] == services[0]["spec"]["ports"][0]["name"], "port")
    print(f"{file.name}: {len(documents)} objects: {', '.join(sorted(set(kinds)))}")

for line in wrong:
    print(line, file=sys.stderr)
sys.exit(bool(wrong))
