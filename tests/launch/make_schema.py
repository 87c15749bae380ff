"""Makes `jobset.schema.json`, the part of JobSet's schema that launch/gke-tpu.yaml uses.

    pip install kubeflow-trainer-api==2.3.0 pyyaml      # in an environment of its own
    python tests/launch/make_schema.py

The package (github.com/kubeflow/trainer, Apache-2.0) is generated from the published API of JobSet
(v1alpha2, with Kubernetes' own). An object keeps the names of all its fields, so that an unknown
one is found; a field that the manifest does not use keeps nothing else.
"""

import json
import re
from pathlib import Path
from typing import Any

import yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

ROOT = Path(__file__).parents[2]
SCHEMA = JobsetV1alpha2JobSet.model_json_schema(by_alias=True)


def reduce(schema: dict[str, Any], values: list[Any]) -> dict[str, Any]:
    """The schema without what none of the values uses."""
    schema = next((one for one in schema.get("anyOf", []) if one.get("type") != "null"), schema) | {
        key: schema[key] for key in ("description",) if key in schema
    }
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    if "actual_instance" in schema.get("properties", {}):
        return {"type": ["string", "integer"]}  # a quantity or a port
    kept: dict[str, Any] = {"type": schema["type"]} if "type" in schema else {}
    if allowed := re.search(r"Valid values are ([\w, ]+)\.", schema.get("description", "")):
        kept["enum"] = allowed[1].split(", ")
    if "properties" in schema:
        kept["required"] = schema.get("required", [])
        kept["properties"] = {
            name: reduce(field, used) if (used := [v[name] for v in values if name in v]) else {}
            for name, field in schema["properties"].items()
        }
    elif isinstance(schema.get("additionalProperties"), dict):
        inner = [item for value in values for item in value.values()]
        kept["additionalProperties"] = reduce(schema["additionalProperties"], inner)
    elif "items" in schema:
        kept["items"] = reduce(schema["items"], [item for value in values for item in value])
    return kept


if __name__ == "__main__":
    manifest = yaml.safe_load((ROOT / "launch" / "gke-tpu.yaml").read_text())
    text = json.dumps(reduce(SCHEMA, [manifest]), indent=1)
    Path(__file__).with_name("jobset.schema.json").write_text(text + "\n")
