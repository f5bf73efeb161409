"""The evaluator of NetworkPolicies says what their documentation says."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.testkit.network_policies import Place, reaches, selects

WEB, DATA = Place("a", {"app": "web"}), Place("a", {"app": "data"})
OTHER = Place("b", {"app": "web"})
OUTSIDE = Place("", address="10.1.2.3")


def policy(spec: dict[str, Any], namespace: str = "a") -> dict[str, Any]:
    return {"metadata": {"namespace": namespace}, "spec": {"podSelector": {}, **spec}}


def into(*rules: dict[str, Any]) -> dict[str, Any]:
    return policy({"ingress": list(rules)})


@pytest.mark.parametrize(
    ("rules", "web", "other", "outside"),
    [
        ([], False, False, False),
        ([{}], True, True, True),
        ([{"from": [{"podSelector": {}}]}], True, False, False),
        ([{"from": [{"podSelector": {"matchLabels": {"app": "no"}}}]}], False, False, False),
        ([{"from": [{"namespaceSelector": {}}]}], True, True, False),
        ([{"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "b"}},
                     "podSelector": {"matchLabels": {"app": "web"}}}]}], False, True, False),
        ([{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}], False, False, True),
        ([{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}],
         False, False, False),
        ([{"ports": [{"protocol": "TCP", "port": 80}]}], True, True, True),
        ([{"ports": [{"protocol": "UDP", "port": 80}]}], False, False, False),
        ([{"ports": [{"protocol": "TCP", "port": 70, "endPort": 90}]}], True, True, True),
        ([{"ports": [{"port": 81}]}, {"from": [{"podSelector": {}}]}], True, False, False),
    ],
)  # fmt: skip
def test_rules_name_peers_and_ports(
    rules: list[dict[str, Any]], web: bool, other: bool, outside: bool
) -> None:
    found = [reaches([into(*rules)], each, DATA, 80) for each in (WEB, OTHER, OUTSIDE)]
    assert found == [web, other, outside]


def test_whom_no_policy_selects_is_open_and_both_ends_have_a_say() -> None:
    closed_out = policy({"policyTypes": ["Egress"]})
    assert reaches([], WEB, DATA, 80)
    assert reaches([closed_out], OTHER, DATA, 80)
    assert not reaches([closed_out], WEB, DATA, 80)
    assert not reaches([into(), policy({"policyTypes": ["Egress"], "egress": [{}]})], WEB, DATA, 80)
    # A policy that says something of egress and names no types is of both kinds.
    assert not reaches([policy({"egress": [{}]})], OTHER, DATA, 80)


def test_policies_add_up() -> None:
    one = into({"from": [{"namespaceSelector": {}}], "ports": [{"port": 81}]})
    assert not reaches([one], OTHER, DATA, 80)
    assert reaches([one, into({"ports": [{"port": 80}]})], OTHER, DATA, 80)


def test_selectors_take_expressions() -> None:
    def by(operator: str, *values: str) -> bool:
        return selects(
            {"matchExpressions": [{"key": "app", "operator": operator, "values": list(values)}]},
            WEB.labels,
        )

    assert by("In", "web")
    assert not by("NotIn", "web")
    assert by("Exists")
    assert not by("DoesNotExist")
    with pytest.raises(ValueError, match="Gt is no operator"):
        by("Gt", "1")


def test_a_port_with_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="give its number"):
        reaches([into({"ports": [{"port": "http"}]})], WEB, DATA, 80)
