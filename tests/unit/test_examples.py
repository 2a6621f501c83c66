"""The files of examples/serving fit together, and fit `dsnet serve`: options, paths, ports and times."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsnet.cli import serve
from dsnet.cli.arguments import Parser

pytest.importorskip("starlette", reason="the extra dsnet[serve] is not installed")

from dsnet.serve import app

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "serving"
FREE = set(re.findall(r'route\("(/v2/health/\w+)", \w+, free=True\)', Path(app.__file__).read_text()))  # of tokens


def parsed(words: list[str]) -> Namespace:
    """The options of `dsnet serve`; an unknown one fails."""
    parser = Parser(prog="dsnet serve")
    serve.add_arguments(parser)
    return parser.parse_args(words)


def lines_of_dockerfile() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", " ", (FOLDER / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def words_of_dockerfile(kind: str) -> list[str]:
    (found,) = [json.loads(rest) for name, rest in lines_of_dockerfile() if name == kind]
    return found


def docs_of_kubernetes() -> tuple[dict[str, Any], dict[str, Any]]:
    deployment, service = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    return deployment, service


def test_an_unknown_option_is_noticed() -> None:
    with pytest.raises((SystemExit, ValueError)):
        parsed(["model.onnx", "--nothing", "1"])


def test_the_dockerfile_copies_what_exists_and_starts_the_server() -> None:
    lines = lines_of_dockerfile()
    known = {"FROM", "COPY", "RUN", "USER", "ENV", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in lines} <= known
    for sources in (rest.split()[:-1] for name, rest in lines if name == "COPY"):
        assert all((ROOT / source).exists() for source in sources)
    entry = words_of_dockerfile("ENTRYPOINT")
    assert entry[:2] == ["dsnet", "serve"]
    args = parsed([*entry[2:], *words_of_dockerfile("CMD")])
    assert (args.host, str(args.port)) == ("0.0.0.0", dict(lines)["EXPOSE"])
    probe = next(rest for name, rest in lines if name == "HEALTHCHECK")
    assert re.search(rf"http://127.0.0.1:{args.port}(/[\w/]+)", probe)[1] in FREE  # type: ignore[index]
    assert dict(lines)["USER"].isdigit()


def test_the_unit_of_systemd_starts_the_server() -> None:
    unit = configparser.ConfigParser(interpolation=None, delimiters="=", strict=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((FOLDER / "dsnet.service").read_text())
    held = unit["Service"]
    command = shlex.split(held["ExecStart"])
    assert command[0].endswith("/dsnet")
    assert command[1] == "serve"
    args = parsed(command[2:])
    assert args.token_file == "%d/" + held["LoadCredential"].partition(":")[0]
    assert float(held["TimeoutStopSec"]) > args.grace
    assert int(held["LimitNOFILE"]) > args.max_connections
    assert "-HUP" in held["ExecReload"]


def test_systemd_accepts_its_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    text = (FOLDER / "dsnet.service").read_text().replace("/opt/dsnet/bin/dsnet", sys.executable)
    for wrong in ("", "Restrt=always\n"):
        (tmp_path / "dsnet.service").write_text(text.replace("Restart=", f"{wrong}Restart=", 1))
        done = subprocess.run(
            ["systemd-analyze", "verify", tmp_path / "dsnet.service"], capture_output=True, text=True, timeout=60
        )
        assert bool(done.returncode or "dsnet.service" in done.stderr) == bool(wrong), done.stderr


def test_the_deployment_of_kubernetes_probes_what_exists_and_waits_long_enough() -> None:
    deployment, service = docs_of_kubernetes()
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    entry = words_of_dockerfile("ENTRYPOINT")
    args = parsed([*entry[2:], *container["args"]])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert set(ports.values()) == {args.port}
    for kind, path in (("startup", "ready"), ("readiness", "ready"), ("liveness", "live")):
        probe = container[f"{kind}Probe"]["httpGet"]
        assert probe["path"] == f"/v2/health/{path}"
        assert probe["path"] in FREE
        assert probe["port"] in ports
    pause = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert spec["terminationGracePeriodSeconds"] > pause + args.grace
    assert str(args.workers) == container["resources"]["requests"]["cpu"]
    assert spec["securityContext"]["runAsUser"] == int(dict(lines_of_dockerfile())["USER"])
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in spec["volumes"]}
    assert args.token_file.startswith(mounts["token"] + "/")
    assert args.models[0].startswith(mounts["models"] + "/")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels == service["spec"]["selector"]
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(ports)


def test_the_config_of_ray_names_what_exists() -> None:
    config = yaml.safe_load((FOLDER / "ray.yaml").read_text())
    (held,) = config["applications"]
    module, _, name = held["import_path"].partition(":")
    source = (ROOT / "src" / Path(*module.split("."))).with_suffix(".py").read_text()
    assert re.search(rf"^def {name}\(", source, flags=re.MULTILINE)
    assert all(app.NAME.fullmatch(model) for model in held["args"])
    assert [one["name"] for one in held["deployments"]] == re.findall(r'"name": "(\w+)"', source)


@pytest.mark.slow
def test_ray_accepts_its_config() -> None:
    schema = pytest.importorskip("ray.serve.schema", reason="the extra dsnet[ray] is not installed")
    config = yaml.safe_load((FOLDER / "ray.yaml").read_text())
    assert schema.ServeDeploySchema(**config).applications[0].name == "dsnet"


def test_the_page_names_every_file() -> None:
    text = (ROOT / "docs" / "serving.md").read_text()
    assert {f"../examples/serving/{file.name}" for file in FOLDER.iterdir()} <= set(re.findall(r"\]\(([^)]+)\)", text))
