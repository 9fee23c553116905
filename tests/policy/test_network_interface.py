"""The interface that ranks on several nodes meet by."""

from __future__ import annotations

import os

import psutil

from mini_agentic_rl.policy.launch import VARIABLE, choose_interface, interface_towards


def test_the_interface_is_the_one_that_leads_to_the_first_node(monkeypatch):
    loopback = interface_towards("127.0.0.1")
    assert loopback is not None
    assert "127.0.0.1" in {one.address for one in psutil.net_if_addrs()[loopback]}
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)
    choose_interface("127.0.0.1")
    assert os.environ[VARIABLE] == loopback


def test_an_interface_that_somebody_names_is_kept_and_a_host_that_is_none_chooses_nothing(monkeypatch):
    monkeypatch.setenv(VARIABLE, "eth7")
    choose_interface("127.0.0.1")
    assert os.environ[VARIABLE] == "eth7"
    monkeypatch.delenv(VARIABLE)
    choose_interface("no such host")
    assert VARIABLE not in os.environ
