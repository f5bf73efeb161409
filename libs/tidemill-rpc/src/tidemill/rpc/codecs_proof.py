"""Explanations to wire messages and back; a proof of any depth is a flat list of nodes on the
wire.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from tidemill.arrangement.looks import look
from tidemill.errors import UsageError
from tidemill.rpc.codecs import json_out
from tidemill.rpc.messages import Explanation, Json
from tidemill_protos.query.v1 import query_pb2 as query

CHILDREN = "children"


def why_out(found: Explanation) -> query.WhyResponse:
    """The message of a proof."""
    nodes = list(_nodes_out(found.tree))
    rest = "" if nodes else json_out(found.tree)
    return query.WhyResponse(text=found.text, tree_json=rest, nodes=nodes)


def why_not_out(found: Explanation) -> query.WhyNotResponse:
    """The message of the reasons for an absence."""
    nodes = list(_nodes_out(found.tree))
    rest = "" if nodes else json_out(found.tree)
    return query.WhyNotResponse(text=found.text, tree_json=rest, nodes=nodes)


def explanation_in(message: query.WhyResponse | query.WhyNotResponse) -> Explanation:
    """The explanation of a message; without a tree where the peer sent none."""
    if message.nodes:
        return Explanation(message.text, _nodes_in(message.nodes))
    return Explanation(message.text, json.loads(message.tree_json) if message.tree_json else None)


def _nodes_out(tree: Json) -> Iterator[query.ExplanationNode]:
    """The nodes of a tree, each before its children; none if `tree` is not one."""
    if not isinstance(tree, dict) or not isinstance(tree.get(CHILDREN), list):
        return
    pending: list[tuple[int, Json]] = [(0, tree)]
    while pending:
        look()
        depth, node = pending.pop()
        children = node.get(CHILDREN) if isinstance(node, dict) else None
        if not isinstance(node, dict) or not isinstance(children, list):
            yield query.ExplanationNode(depth=depth, json=json_out(node))
            continue
        bare: Mapping[str, Json] = {**node, CHILDREN: []}
        yield query.ExplanationNode(depth=depth, json=json_out(bare))
        pending += [(depth + 1, child) for child in reversed(children)]


def _nodes_in(messages: Iterable[query.ExplanationNode]) -> Json:
    """The tree of nodes in that order. Raises UsageError if a node has no parent."""
    # The lists that the next node may join, by its depth.
    above: list[list[Json]] = [[]]
    for message in messages:
        if message.depth >= len(above) or (message.depth == 0 and above[0]):
            raise UsageError("a node of the explanation has no parent", reason="tree")
        node: Json = json.loads(message.json)
        del above[message.depth + 1 :]
        above[message.depth].append(node)
        children = node.get(CHILDREN) if isinstance(node, dict) else None
        if isinstance(children, list):
            above.append(children)
    return above[0][0]
