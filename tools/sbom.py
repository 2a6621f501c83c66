"""Write a software bill of materials of an installed dsnet, as CycloneDX JSON.

    python tools/sbom.py [--extras train openvino] > sbom.json

It has every package that dsnet needs with these extras, as it is installed here, with version, licence, the packages
that it needs in turn, and the digest of its file if lock.txt has that version.
"""

from __future__ import annotations

import argparse
import json
import re
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

LOCK = Path(__file__).parents[1] / "lock.txt"


def reference(name: str, version: str) -> str:
    """The package URL, which also identifies a component inside the file."""
    return f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{version}"


def needed(package: Distribution, extras: Sequence[str]) -> list[tuple[Distribution, tuple[str, ...]]]:
    """The installed packages that a package needs with some of its extras, each with the extras that it asks for."""
    found = []
    for text in package.requires or ():
        requirement = Requirement(text)
        wanted = requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in ("", *extras))
        if wanted and requirement.name != package.name:
            try:
                found.append((distribution(requirement.name), tuple(sorted(requirement.extras))))
            except PackageNotFoundError:
                raise SystemExit(f"{requirement.name} is not installed, which {package.name} needs") from None
        elif wanted:
            found += needed(package, tuple(requirement.extras))
    return found


def component(package: Distribution, digests: dict[str, str]) -> dict[str, Any]:
    about, key = package.metadata.json, reference(package.name, package.version)
    found: dict[str, Any] = {"type": "library", "bom-ref": key, "name": package.name, "version": package.version}
    if expression := about.get("license_expression"):
        found["licenses"] = [{"expression": expression}]
    else:
        kinds = [kind.split(" :: ")[-1] for kind in about.get("classifier", ()) if kind.startswith("License ::")]
        names = kinds or str(about.get("license", "")).strip().splitlines()[:1]
        found["licenses"] = [{"license": {"name": name}} for name in names]
    if key in digests:
        found["hashes"] = [{"alg": "SHA-256", "content": digests[key]}]
    return {**found, "purl": key}


def locked() -> dict[str, str]:
    """Digests of files by the reference of their package."""
    rows = re.findall(r"^(\S+)==(\S+) --hash=sha256:(\S+)$", LOCK.read_text(), re.MULTILINE) if LOCK.exists() else []
    return {reference(name, version): digest for name, version, digest in rows}


def bill(extras: Sequence[str]) -> dict[str, Any]:
    root, digests = distribution("dsnet"), locked()
    components: dict[str, dict[str, Any]] = {}
    edges: dict[str, set[str]] = {}
    left = [(root, tuple(extras))]
    while left:
        package, wanted = left.pop()
        key, before = reference(package.name, package.version), edges.get(reference(package.name, package.version))
        components[key] = component(package, digests)
        others = needed(package, wanted)
        edges[key] = (before or set()) | {reference(other.name, other.version) for other, _ in others}
        if before is None or edges[key] != before:
            left += others
    main = components.pop(reference(root.name, root.version))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {"timestamp": datetime.now(UTC).isoformat(timespec="seconds"), "component": main},
        "components": [components[key] for key in sorted(components)],
        "dependencies": [{"ref": key, "dependsOn": sorted(edges[key])} for key in sorted(edges)],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a software bill of materials.")
    parser.add_argument("--extras", nargs="*", default=["train"], help="Extras of dsnet (default: train).")
    print(json.dumps(bill(parser.parse_args().extras), indent=1))
