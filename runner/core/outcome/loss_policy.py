"""Loss policy: decide whether an attempt continues when one of its nodes is lost.

Pure: the controller and the hub apply it to the same order and so come to the same decision.
"""

from __future__ import annotations

from runner.core.model.order import Order


def is_indispensable(order: Order, name: str) -> bool:
    """Return whether the loss of the node `name` ends the attempt, however many nodes remain.

    Args:
        order: The order of any node of the attempt.
        name: The node that was lost.
    """
    if order.hub is None or not order.restarts_ranks:
        return True
    if order.sidecar is not None and order.sidecar.node == name:
        return True  # no torchrun continues without its etcd
    return order.hub.required and order.hub.node == name


def nodes_after_loss(order: Order, name: str, remaining: int) -> int:
    """Return how many nodes the attempt continues with when `name` is lost, 0 if that ends it.

    Args:
        order: The order of any node of the attempt.
        name: The node that was lost.
        remaining: How many other nodes are present.
    """
    if order.hub is None or is_indispensable(order, name):
        return 0
    required = order.hub.min_nodes or 1 + order.hub.member_count
    return remaining if remaining >= required else 0
