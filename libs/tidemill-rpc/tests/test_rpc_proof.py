"""An explanation of any shape and depth survives the wire."""

from __future__ import annotations

from contextvars import copy_context

import pytest

from tidemill.arrangement.looks import LOOK
from tidemill.errors import UsageError
from tidemill.rpc import codecs_proof
from tidemill.rpc.messages import Explanation, Json
from tidemill_protos.query.v1 import query_pb2 as query

LEAF: Json = {"fact": "a(1)", "rule": None, "children": []}
TREE: Json = {
    "fact": "c(1)",
    "rule": "c(x) := a(x), b(x)",
    "children": [
        {"fact": "b(1)", "rule": "b(x) := a(x)", "children": [LEAF], "since": 5},
        LEAF,
        "not d(1, _)",
        {"fact": "e(1)"},
    ],
}


@pytest.mark.parametrize(
    "tree", [TREE, LEAF, None, [], {}, [{"rule": 1}], {"fact": "a"}, "text", 0]
)
def test_a_tree_comes_back_as_it_was(tree: Json) -> None:
    found = Explanation("because", tree)
    why = query.WhyResponse.FromString(codecs_proof.why_out(found).SerializeToString())
    assert codecs_proof.explanation_in(why) == found
    why_not = query.WhyNotResponse.FromString(codecs_proof.why_not_out(found).SerializeToString())
    assert codecs_proof.explanation_in(why_not) == found


def test_a3_a_long_proof_looks_while_it_becomes_a_message() -> None:
    """500 parts took five milliseconds, in which no call of another user went first."""
    looks: list[None] = []
    parts: list[Json] = [LEAF] * 500
    told = copy_context()
    told.run(LOOK.set, lambda: looks.append(None))
    made = told.run(codecs_proof.why_out, Explanation("", {"fact": "b(1)", "children": parts}))
    assert len(made.nodes) == 501
    assert len(looks) >= len(made.nodes)


def test_a_proof_of_seventy_thousand_steps_comes_back_whole() -> None:
    tree: Json = LEAF
    for step in range(70_000):
        tree = {
            "fact": f"reach({step})",
            "rule": "reach(y) := reach(x), edge(x, y)",
            "children": [tree],
        }
    node = codecs_proof.explanation_in(codecs_proof.why_out(Explanation("", tree))).tree
    facts = 0
    while isinstance(node, dict) and isinstance(children := node["children"], list) and children:
        facts += 1
        node = children[0]
    assert (facts, node) == (70_000, LEAF)


@pytest.mark.parametrize("depths", [[1], [0, 2], [0, 0]])
def test_nodes_that_are_no_tree_are_refused(depths: list[int]) -> None:
    nodes = [query.ExplanationNode(depth=d, json='{"children":[]}') for d in depths]
    with pytest.raises(UsageError):
        codecs_proof.explanation_in(query.WhyResponse(nodes=nodes))
