"""The part of KubeRay's RayService schema that our manifest uses, to check it by offline.

Names, types and what is required are those of `ray.io/v1` in KubeRay's CRD
(helm-chart/kuberay-operator/crds/ray.io_rayservices.yaml at 02a80a6f2abf). The CRD lets the API
server drop a name that it does not know; here, as with `kubectl --validate=strict`, it is an error.
"""

from __future__ import annotations

from typing import Any

TEXT, WHOLE, YES_NO = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
QUANTITY = {
    "type": ["integer", "string"],
    "pattern": r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$",
}
NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
COUNT = WHOLE | {"minimum": 0, "maximum": 2**31 - 1}


def fields(*required: str, **properties: Any) -> dict[str, Any]:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def several(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


QUANTITIES = {"type": "object", "additionalProperties": QUANTITY}
FROM_SECRET = fields(
    "secretKeyRef", secretKeyRef=fields("key", name=TEXT, key=TEXT, optional=YES_NO)
)
CONTAINER = fields(
    "name",
    "image",
    name=NAME,
    image=TEXT,
    ports=several(
        fields("containerPort", containerPort=WHOLE | {"minimum": 1, "maximum": 65535}, name=NAME)
    ),
    env=several(fields("name", name=TEXT, value=TEXT, valueFrom=FROM_SECRET)),
    resources=fields(limits=QUANTITIES, requests=QUANTITIES),
)
POD = fields(
    "containers",
    containers=several(CONTAINER),
    terminationGracePeriodSeconds=COUNT,
    tolerations=several(
        fields(
            key=TEXT,
            operator={"enum": ["Exists", "Equal"]},
            value=TEXT,
            effect={"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
        )
    ),
)
TEMPLATE = fields("spec", spec=POD)
HEAD = fields("template", rayStartParams=TEXTS, template=TEMPLATE)
WORKERS = fields(
    "groupName",
    "minReplicas",
    "maxReplicas",
    "template",
    groupName=NAME,
    replicas=COUNT,
    minReplicas=COUNT,
    maxReplicas=COUNT,
    rayStartParams=TEXTS,
    template=TEMPLATE,
)
CLUSTER = fields(
    "headGroupSpec",
    rayVersion=TEXT,
    enableInTreeAutoscaling=YES_NO,
    headGroupSpec=HEAD,
    workerGroupSpecs=several(WORKERS),
)
RAY_SERVICE = fields(
    "apiVersion",
    "kind",
    "metadata",
    "spec",
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayService"},
    metadata=fields("name", name=NAME, namespace=NAME, labels=TEXTS, annotations=TEXTS),
    spec=fields("serveConfigV2", "rayClusterConfig", serveConfigV2=TEXT, rayClusterConfig=CLUSTER),
)
