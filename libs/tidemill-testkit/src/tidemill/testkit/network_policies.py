"""Reachability under NetworkPolicies, by the rules of networking.k8s.io/v1, without a network.

Traffic passes if the policies that select the sender let it out, and those that select the receiver
let it in. A pod that no policy selects for a direction is open in it. Ports are numbers: names of
ports are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]
NAME = "kubernetes.io/metadata.name"


@dataclass(frozen=True, slots=True)
class Place:
    """A pod, or with an empty namespace an address outside of the network of pods."""

    namespace: str
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    address: str = ""


def selects(selector: Json, labels: Mapping[str, str]) -> bool:
    """Whether a label selector takes an object; an empty one takes all."""
    wanted = selector.get("matchLabels", {}).items()
    return wanted <= labels.items() and all(
        _holds(each, labels) for each in selector.get("matchExpressions", ())
    )


def _holds(expression: Json, labels: Mapping[str, str]) -> bool:
    there = expression["key"] in labels
    match expression["operator"]:
        case "In":
            return there and labels[expression["key"]] in expression["values"]
        case "NotIn":
            return not there or labels[expression["key"]] not in expression["values"]
        case "Exists":
            return there
        case "DoesNotExist":
            return not there
    raise ValueError(f"{expression['operator']} is no operator of a selector")


def reaches(
    policies: Iterable[Json], sender: Place, receiver: Place, port: int, protocol: str = "TCP"
) -> bool:
    """Whether a connection is let through. Labels of namespaces are their names alone."""
    known = list(policies)
    return _passes(known, "Egress", sender, receiver, port, protocol) and _passes(
        known, "Ingress", receiver, sender, port, protocol
    )


def _passes(
    policies: list[Json], direction: str, at: Place, peer: Place, port: int, protocol: str
) -> bool:
    mine = [
        each
        for each in policies
        if at.namespace
        and each["metadata"]["namespace"] == at.namespace
        and direction in _types(each["spec"])
        and selects(each["spec"]["podSelector"], at.labels)
    ]
    far = "to" if direction == "Egress" else "from"
    return not mine or any(
        _names(rule.get(far), peer, each["metadata"]["namespace"])
        and _opens(rule.get("ports"), port, protocol)
        for each in mine
        for rule in each["spec"].get(direction.lower()) or ()
    )


def _types(spec: Json) -> list[str]:
    return list(
        spec.get("policyTypes") or (["Ingress", "Egress"] if "egress" in spec else ["Ingress"])
    )


def _names(peers: list[Json] | None, place: Place, home: str) -> bool:
    """Whether a place is among the peers of a rule; a rule without peers names all."""
    return not peers or any(_is(each, place, home) for each in peers)


def _is(peer: Json, place: Place, home: str) -> bool:
    if "ipBlock" in peer:
        block = peer["ipBlock"]
        return bool(place.address) and (
            ip_address(place.address) in ip_network(block["cidr"])
            and not any(ip_address(place.address) in ip_network(e) for e in block.get("except", ()))
        )
    if not place.namespace:
        return False
    if "namespaceSelector" in peer:
        there = selects(peer["namespaceSelector"], {NAME: place.namespace})
    else:
        there = place.namespace == home
    return there and selects(peer.get("podSelector", {}), place.labels)


def _opens(ports: list[Json] | None, port: int, protocol: str) -> bool:
    return not ports or any(_is_port(each, port, protocol) for each in ports)


def _is_port(each: Json, port: int, protocol: str) -> bool:
    if each.get("protocol", "TCP") != protocol:
        return False
    if "port" not in each:
        return True
    if not isinstance(each["port"], int):
        raise ValueError(f"the port {each['port']} has a name: give its number")
    return bool(each["port"] <= port <= each.get("endPort", each["port"]))
