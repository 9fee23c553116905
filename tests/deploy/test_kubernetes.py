"""The Kubernetes manifests of deploy/, by the API's own schema and kustomize; their commands by our own parser."""

from __future__ import annotations

import copy
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

import pytest
import yaml

from .compose import DRAIN, KUBERNETES, RUNNERS_END, document


@cache
def manifests() -> list[dict[str, Any]]:
    named = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    return [one for name in sorted(named) for one in yaml.safe_load_all((KUBERNETES / name).read_text())]


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for one in manifests():
        if one["kind"] in ("Deployment", "StatefulSet", "Job"):
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]


def dropped(given: Any, read: Any, where: str) -> Iterator[str]:
    """Yield the fields of a manifest that its type in Kubernetes's API does not have."""
    if isinstance(given, dict):
        for name, value in given.items():
            if name in read:
                yield from dropped(value, read[name], f"{where}.{name}")
            else:
                yield f"{where}.{name}"
    elif isinstance(given, list):
        for number, (value, read_value) in enumerate(zip(given, read, strict=True)):
            yield from dropped(value, read_value, f"{where}[{number}]")


def unknown_fields(manifest: dict[str, Any]) -> list[str]:
    """Return the fields of a manifest that its type does not have; raise `msgspec.ValidationError` for wrong values."""
    msgspec = import_module("msgspec")
    read = msgspec.to_builtins(msgspec.convert(manifest, kind_of(manifest)))
    return list(dropped(manifest, read, manifest["kind"]))


def kind_of(manifest: dict[str, Any]) -> Any:
    """Return the type of a manifest in Kubernetes's API."""
    group, _, version = manifest["apiVersion"].rpartition("/")
    module = import_module(f"lightkube.models.{(group or 'core').partition('.')[0]}_{version}")
    return getattr(module, manifest["kind"])


class TestKubernetes:
    def test_the_manifests_fit_the_api(self) -> None:
        pytest.importorskip(
            "lightkube.models", reason="lightkube-models is not installed: the manifests are left unchecked"
        )
        assert len(manifests()) == 8
        for manifest in manifests():
            assert unknown_fields(manifest) == []
            misspelled = {**manifest, "spec": {**manifest["spec"], "replcas": 2}}
            assert unknown_fields(misspelled) == [f"{manifest['kind']}.spec.replcas"]
        (store,) = [each for each in manifests() if (each["kind"], each["metadata"]["name"]) == ("Deployment", "store")]
        store = copy.deepcopy(store)
        store["spec"]["template"]["spec"]["containers"][0].update(args="store")
        with pytest.raises(import_module("msgspec").ValidationError, match="args"):
            unknown_fields(store)

    def test_kustomize_builds_them(self) -> None:
        tool = shutil.which("kustomize") or shutil.which("kubectl")
        if tool is None:
            pytest.skip("neither kustomize nor kubectl is installed: the kustomizations are left unbuilt")
        command = [tool, "build"] if tool.endswith("kustomize") else [tool, "kustomize"]
        built = subprocess.run([*command, str(KUBERNETES)], capture_output=True, text=True, check=True)
        found = list(yaml.safe_load_all(built.stdout))
        assert sorted(one["kind"] for one in found) == sorted(["ConfigMap", *(one["kind"] for one in manifests())])
        assert {one["metadata"]["namespace"] for one in found} == {"agl"}
        (settings,) = [one for one in found if one["kind"] == "ConfigMap"]
        (learner,) = [one for one in found if one["kind"] == "Job"]
        pod = learner["spec"]["template"]["spec"]
        assert pod["volumes"][0]["configMap"]["name"] == settings["metadata"]["name"]

    def test_the_kustomization_names_every_file(self) -> None:
        given = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
        named = [*given["resources"], *given["configMapGenerator"][0]["files"], "kustomization.yaml"]
        assert sorted(named) == sorted(path.name for path in KUBERNETES.iterdir())

    def test_the_settings_are_mounted_where_the_commands_read_them(self) -> None:
        (made,) = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["configMapGenerator"]
        for name, pod in pods():
            if name in ("learner", "runner"):
                (container,) = pod["containers"]
                (mount,) = [one for one in container["volumeMounts"] if one["name"] == "training"]
                assert f"{mount['mountPath']}/{made['files'][0]}" in container["args"]
                assert {"name": "training", "configMap": {"name": made["name"]}} in pod["volumes"]

    def test_they_run_what_the_compose_file_runs(self) -> None:
        services = document()["services"]
        for name, pod in pods():
            if name != "postgres":
                (container,) = pod["containers"]
                assert container["args"] == services[name]["command"]
                given = {one["name"]: one.get("value") for one in container["env"]}
                plain = {key: value for key, value in services[name]["environment"].items() if "${" not in value}
                assert {key: value for key, value in given.items() if value is not None} == plain
                assert set(given) == set(services[name]["environment"])

    def test_each_service_selects_the_pods_of_a_port_of_its_name(self) -> None:
        labels = {one["metadata"]["name"]: one["spec"]["template"] for one in manifests() if "template" in one["spec"]}
        services = [one for one in manifests() if one["kind"] == "Service"]
        assert len(services) == 3
        for one in services:
            pod = labels[one["metadata"]["name"]]
            assert one["spec"]["selector"] == pod["metadata"]["labels"]
            (port,) = one["spec"]["ports"]
            assert port["port"] == pod["spec"]["containers"][0]["ports"][0]["containerPort"]

    def test_probes_ask_what_our_servers_answer_without_a_key(self) -> None:
        asked = {
            probe["httpGet"]["path"]
            for _, pod in pods()
            for name, probe in pod["containers"][0].items()
            if name.endswith("Probe") and "httpGet" in probe
        }
        assert asked == {"/v1/agl/health", "/health"}

    def test_each_pod_has_time_to_stop_and_no_more_rights_than_it_needs(self) -> None:
        graces = {name: pod["terminationGracePeriodSeconds"] for name, pod in pods()}
        assert graces["store"] > DRAIN
        assert graces["runner"] > RUNNERS_END
        assert graces["learner"] > max(graces["store"], graces["runner"])
        for _, pod in pods():
            assert pod["securityContext"]["runAsNonRoot"]
            assert pod["containers"][0]["securityContext"]["capabilities"]["drop"] == ["ALL"]
