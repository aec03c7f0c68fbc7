"""Adds the libraries of a handler to an image's bill of materials (`docker/bom.py` lists everything else)."""

import json
import re
import uuid
from typing import Any

from marina.config.requirements import Requirements


def with_libraries(bill: dict[str, Any], libraries: Requirements) -> str:
    """The bill as JSON, with a component for each wheel, whose hash is the one that was pinned."""
    for wheel in libraries.wheels:
        name = re.sub(r"[-_.]+", "-", wheel.name).lower()
        purl = f"pkg:pypi/{name}@{wheel.version.replace('+', '%2B')}"
        bill["components"].append(
            {
                "type": "library",
                "bom-ref": purl,
                "name": name,
                "version": wheel.version,
                "purl": purl,
                "hashes": [{"alg": "SHA-256", "content": wheel.sha256}],
            }
        )
    references = sorted(component["bom-ref"] for component in bill["components"])
    bill["dependencies"] = [{"ref": "image", "dependsOn": references}]
    content = json.dumps(bill["components"], sort_keys=True)
    bill["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}"
    return json.dumps(bill, indent=2, sort_keys=True) + "\n"
