"""The lines that a bench prints: ours, the floor of the same run, the ratio, and whether it is within its budget."""

import statistics
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The value at that share of the sorted values; with few values the largest."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


class Table:
    """Prints as it goes, and keeps what missed its budget."""

    def __init__(self) -> None:
        self.missed: list[str] = []
        print(f"{'what':58s} {'unit':8s} {'median':>9s} {'p99':>9s} {'floor':>9s} {'ratio':>7s}  budget")

    def ratio(self, what: str, unit: str, values: Sequence[float], floor: float, budget: float) -> None:
        """A median beside its floor; the budget is a ratio."""
        median = statistics.median(values)
        is_met = median <= floor * budget
        self._print(what, unit, values, floor, f"<= {budget:g}x", is_met)

    def within(self, what: str, unit: str, values: Sequence[float], floor: float, limits: tuple[float, float]) -> None:
        """A median and a p99 beside a floor; the budget is absolute."""
        is_met = statistics.median(values) <= limits[0] and percentile(values, 0.99) <= limits[1]
        self._print(what, unit, values, floor, f"<= {limits[0]:g} / {limits[1]:g}", is_met)

    def _print(
        self, what: str, unit: str, values: Sequence[float], floor: float, budget: str, is_met: bool
    ) -> None:
        median = statistics.median(values)
        ratio = f"{median / floor:6.2f}x" if floor else "      –"
        verdict = "ok" if is_met else "MISSED"
        print(
            f"{what:58s} {unit:8s} {median:9.3f} {percentile(values, 0.99):9.3f} {floor:9.3f} {ratio}  {budget} {verdict}",
            flush=True,
        )
        if not is_met:
            self.missed.append(what)
