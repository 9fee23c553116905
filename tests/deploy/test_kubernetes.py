"""The Kubernetes manifests of deploy/, by the API's own schema and kustomize; their commands by our own parser."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
import types
import typing
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

import pytest
import yaml

from .compose import document
from .promises import DRAIN, KUBERNETES, RUNNERS_END, parses


@cache
def manifests() -> list[dict[str, Any]]:
    named = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    return [one for name in sorted(named) for one in yaml.safe_load_all((KUBERNETES / name).read_text())]


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for one in manifests():
        if one["kind"] in ("Deployment", "StatefulSet", "Job"):
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]


def strangers(value: Any, kind: Any, where: str) -> Iterator[str]:
    """Give what a manifest holds that its type in Kubernetes's API has not: fields, missing ones, values."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        kinds = [one for one in typing.get_args(kind) if one is not type(None)]
        found = [list(strangers(value, one, where)) for one in kinds]
        if all(found):
            yield from min(found, key=len)
    elif origin is list:
        if not isinstance(value, list):
            yield f"{where} is no list"
            return
        for number, one in enumerate(value):
            yield from strangers(one, typing.get_args(kind)[0], f"{where}[{number}]")
    elif origin is dict:
        if not isinstance(value, dict):
            yield f"{where} is no mapping"
            return
        for name, one in value.items():
            yield from strangers(one, typing.get_args(kind)[1], f"{where}.{name}")
    elif isinstance(kind, type) and hasattr(kind, "__struct_fields__"):
        if not isinstance(value, dict):
            yield f"{where} is no {kind.__name__}"
            return
        structs = import_module("msgspec.structs")
        hints = typing.get_type_hints(kind)
        fields = {one.encode_name: one for one in structs.fields(kind)}
        for name in value:
            if name not in fields:
                yield f"{where} has no {name}"
            else:
                yield from strangers(value[name], hints[fields[name].name], f"{where}.{name}")
        yield from (f"{where} needs {name}" for name, one in fields.items() if one.required and name not in value)
    elif isinstance(kind, type) and not isinstance(value, kind):
        yield f"{where} is {value!r}, not {kind.__name__}"


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
        for one in manifests():
            kind = kind_of(one)
            assert list(strangers(one, kind, one["kind"])) == []
            wrong = {**one, "spec": {**one["spec"], "replcas": 2}}
            assert list(strangers(wrong, kind, one["kind"])) == [f"{one['kind']}.spec has no replcas"]
        (store,) = [one for one in manifests() if one["kind"] == "Deployment" and one["metadata"]["name"] == "store"]
        store = copy.deepcopy(store)
        store["spec"]["template"]["spec"]["containers"][0].update(ports=[{"name": "http"}], args="store")
        assert len(list(strangers(store, kind_of(store), "store"))) == 2

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

    def test_each_command_is_one_of_ours(self) -> None:
        ours = [pod["containers"][0]["args"] for name, pod in pods() if name != "postgres"]
        assert len(ours) == 3
        for words in ours:
            parses(words)

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

    def test_no_secret_stands_in_them(self) -> None:
        for _, pod in pods():
            for one in pod["containers"][0]["env"]:
                assert "value" not in one or not re.search("PASSWORD|KEY", one["name"]), one["name"]
