"""The shapes of plans that are timed: ``(goals, dependencies of each by index)``."""

import random


def wide(size: int) -> list[list[int]]:
    """A root, its leaves, a sink."""
    return [[], *([0] for _ in range(size - 2)), list(range(1, size - 1))]


def chain(size: int) -> list[list[int]]:
    """Each waits for the one before."""
    return [[], *([index - 1] for index in range(1, size))]


def layered(size: int, width: int = 32) -> list[list[int]]:
    """32 a layer, each with 1 to 5 dependencies in the layer before."""
    draw = random.Random(7)
    graph: list[list[int]] = []
    for index in range(size):
        start = (index // width - 1) * width
        graph.append(sorted(draw.sample(range(start, start + width), draw.randint(1, 5))) if start >= 0 else [])
    return graph


SHAPES = {"wide": wide, "chain": chain, "layered": layered}
